"""The batch lane through the real `vllm run-batch`: each wave is a file that goes in, and one that comes out."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel
from scripts.engines.layout import MODEL_NAME
from tests.live.engines import vllm_run_batch

from batch_agent import BatchAgent, ErrorKind
from batch_agent.backends.dialects.openai.encoder import PATH, OpenAIChat
from batch_agent.backends.flavors import VLLM
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.protocols.store import Submission
from batch_agent.core.requests import Delta, Request
from batch_agent.lanes.batch_service import BatchLine, BatchStatus, LineResult
from batch_agent.lanes.openai_batch_service import encode_lines, read_result_line
from batch_agent.schedule.lanes.waves import SubmissionLimits

TOO_LONG = "word " * 6000


class Verdict(BaseModel):
    mood: Literal["good", "bad"]


class RunBatchFiles:
    """Batch service that has vLLM work off the files."""

    limits = SubmissionLimits()
    traits = Traits("vllm", MODEL_NAME, False, True, False, 32, lanes=("standard", "batch"))
    dialect = OpenAIChat(VLLM.extensions)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: list[asyncio.Task[None]] = []

    @property
    def batch_service(self) -> "RunBatchFiles":
        return self

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        raise AssertionError("nothing is sent outside of batches")

    async def leave(self, agent: str) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def upload(self, lines: Sequence[BatchLine]) -> str:
        path = self._folder / f"in-{len(self._runs)}.jsonl"
        path.write_bytes(encode_lines(lines, "/v1" + PATH) + b"\n")
        return path.name

    async def create(self, wave: str, file: str, lines: Sequence[BatchLine]) -> BatchStatus:
        output = self._folder / file.replace("in", "out")
        run = asyncio.to_thread(vllm_run_batch, self._folder, self._folder / file, output)
        self._runs.append(asyncio.create_task(run))
        return BatchStatus(output.name, "waiting", len(lines))

    async def find(self, submission: Submission) -> Sequence[BatchStatus]:
        return ()

    async def owns(self, status: BatchStatus, ids: frozenset[str]) -> bool | None:
        return True

    async def withdraw(self, file: str) -> None:
        pass

    async def status(self, batch: str) -> BatchStatus:
        await self._runs[-1]
        return BatchStatus(batch, "ended", reported="completed", files=(batch,))

    async def results(self, status: BatchStatus) -> AsyncGenerator[LineResult, None]:
        for line in (self._folder / status.id).read_bytes().splitlines():
            if (result := read_result_line(line)) is not None:
                yield result


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_our_batch_files_run_through_vllm_run_batch_and_come_back(tmp_path: Path) -> None:
    results = await BatchAgent.run(
        task="Is this good or bad: {text}",
        inputs=[{"text": text} for text in ("a warm day", "a broken leg", TOO_LONG, "a new friend")],
        output_schema=Verdict,
        backend=RunBatchFiles(tmp_path),
        model=MODEL_NAME,
        lane="batch",
        checkpoint_dir=tmp_path / "checkpoint",
        max_tokens=24,
        temperature=0,
    )
    assert [result.ok for result in results] == [True, True, False, True], [result.error for result in results]
    assert all(isinstance(result.output, Verdict) for result in results if result.ok)
    assert results[0].usage.of_lane("batch").input > 0
    failed = results[2].error
    assert failed is not None
    assert failed.kind is ErrorKind.CONTEXT_OVERFLOW
    assert len(list(tmp_path.glob("out-*.jsonl"))) == 1
