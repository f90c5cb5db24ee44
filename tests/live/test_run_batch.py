"""`batch-agent run-batch` and `serve-batches` on real vLLM, and the same file given to vLLM's own `run-batch`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from scripts.engines.layout import MODEL_NAME
from tests.live.engines import vllm_run_batch

from batch_agent.batch_server.run_batch import RunBatchResult, run_batch
from batch_agent.batch_server.server import BatchServerConfig, serve_batches
from batch_agent.core.spec import BatchSpec

QUESTIONS = ("What is the capital of France?", "Name a color.", "Count to five.", "What is two plus two?")


def line(custom_id: str, question: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    asked = {"model": MODEL_NAME, "messages": messages, "max_tokens": 16, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": asked}


def write(path: Path) -> Path:
    lines = [line(f"line-{number}", question) for number, question in enumerate(QUESTIONS)]
    lines += [line("likely", QUESTIONS[0], logprobs=True, top_logprobs=2)]
    lines += [line("other model", "Hello", model="other"), line("too long", "word " * 5000)]
    lines += [line("several", QUESTIONS[1], n=2)]  # refused: all would be the same
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def read(path: Path) -> dict[str, Any]:
    return {each["custom_id"]: each for each in map(json.loads, path.read_text().splitlines())}


def answer(found: dict[str, Any]) -> Any:
    """What must not differ: all but ids and times, and what of the prompt was in the cache."""
    body = found["response"]["body"]
    choices = [
        (choice["message"]["content"], choice["finish_reason"], choice["logprobs"]) for choice in body["choices"]
    ]
    usage = {name: body["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return body["object"], body["model"], choices, usage


def spec(vllm_url: str) -> BatchSpec:
    address = vllm_url.removeprefix("http://")
    return BatchSpec.of(task="Lines of a batch.", inputs=(), backend=f"vllm://{address}")


@pytest.mark.nightly
@pytest.mark.timeout(900)  # two engines are started
async def test_run_batch_answers_a_file_as_vllms_own_command_does(vllm_url: str, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl")
    await asyncio.to_thread(vllm_run_batch, tmp_path, source, tmp_path / "theirs.jsonl")
    result = await run_batch(str(source), tmp_path / "ours.jsonl", spec(vllm_url), (), lambda _: None)
    assert result == RunBatchResult(5, 3, 0)
    ours, theirs = read(tmp_path / "ours.jsonl"), read(tmp_path / "theirs.jsonl")
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].keys() == theirs[name].keys()
        assert ours[name]["response"].keys() == theirs[name]["response"].keys()
        assert ours[name]["response"]["status_code"] == theirs[name]["response"]["status_code"], name
    answered = [name for name in ours if ours[name]["response"]["status_code"] == 200]
    assert len(answered) == 5
    for name in answered:
        assert answer(ours[name]) == answer(theirs[name]), name


async def test_openais_client_runs_a_batch_on_real_vllm(vllm_url: str, tmp_path: Path) -> None:
    source, stop = write(tmp_path / "in.jsonl"), asyncio.Event()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    config = BatchServerConfig(tmp_path / "batches", port=0)
    serving = asyncio.create_task(serve_batches(config, spec(vllm_url), (), print, port.set_result, stop))
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{await port}/v1", api_key="none")
    async with client, asyncio.timeout(120):
        file = await client.files.create(file=source, purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        while batch.status != "completed":
            await asyncio.sleep(0.2)
            batch = await client.batches.retrieve(batch.id)
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (5, 3)
        assert batch.output_file_id is not None
        output = (await client.files.content(batch.output_file_id)).text
        assert "Paris" in json.loads(output.splitlines()[0])["response"]["body"]["choices"][0]["message"]["content"]
    stop.set()
    await serving
