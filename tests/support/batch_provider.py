"""Provider with batches in memory, on the clock of the loop: a scripted model, faults, and a count of its bills."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeVar

import orjson

from batch_agent import BackendError, ErrorKind
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.protocols.store import Submission
from batch_agent.core.requests import Delta, Request
from batch_agent.lanes.batch_service import Answered, BatchLine, BatchStatus, LineFailed, LineResult, not_processed
from batch_agent.schedule.lanes.waves import SubmissionLimits

T = TypeVar("T")

TRAITS = Traits(
    "provider",
    "m",
    native_tools=True,
    json_schema=True,
    json_schema_with_tools=True,
    inflight=200,
    lanes=("standard", "batch"),
)
LINE_FAULTS = ("errored", "expired", "missing", "refused")
BATCH_FAULTS = ("expired", "cancelled", "lost file", "failed", "bad line", "token limit")
CALL_FAULTS = ("before", "after", "lost answer")
"""A 5xx before or after the call took effect, and a connection that breaks after it did."""


@dataclass(slots=True)
class Faults:
    """Probabilities."""

    line: float = 0.0
    batch: float = 0.0
    call: float = 0.0
    cut: float = 0.0
    """Of a download that ends early."""


@dataclass(slots=True)
class _ProviderBatch:
    id: str
    wave: str
    created: float
    ends: float
    lines: Sequence[BatchLine]
    fault: str = ""
    outcomes: dict[str, LineResult] = field(default_factory=dict)
    has_ended: bool = False


class BatchProvider:
    """Backend with a batch service. The agent for the input `n` has `turns_of(n)` turns, with a tool call in each but
    the last."""

    limits = SubmissionLimits()

    def __init__(
        self,
        seed: int = 0,
        faults: Faults | None = None,
        seconds: float = 3600.0,
        enqueued_tokens: float = float("inf"),
    ) -> None:
        """`seconds`: of a batch, at most."""
        self.traits = TRAITS
        self.dialect = OpenAIChat()
        self.faults = faults or Faults()
        self._seconds = seconds
        self._enqueued_tokens = enqueued_tokens
        self._dice = random.Random(seed)
        self.files: dict[str, Sequence[BatchLine]] = {}
        self._uploads = 0
        self.batches: dict[str, _ProviderBatch] = {}
        self.billed: Counter[str] = Counter()
        """Answers that were billed in batches, by the body of their request."""
        self.lost: Counter[str] = Counter()
        """Those of them that the provider has lost."""
        self.live: Counter[str] = Counter()
        self.refused_for_tokens = 0
        self.polled = asyncio.Event()
        """Set when the status of a batch was read: it was submitted, and is awaited."""

    @property
    def batch_service(self) -> "BatchProvider":
        return self

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        body = self.dialect.encode(request)
        self.live[_name(body)] += 1

        async def deltas() -> AsyncIterator[Delta]:
            for delta in self.dialect.decode_reply(answer(body)):
                yield delta

        await asyncio.sleep(self._dice.random())
        yield deltas()

    async def leave(self, agent: str) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def upload(self, lines: Sequence[BatchLine]) -> str:
        self._uploads += 1
        file = f"file-{self._uploads}"

        def add() -> str:
            self.files[file] = list(lines)
            return file

        return await self._call(add)

    async def create(self, wave: str, file: str, lines: Sequence[BatchLine]) -> BatchStatus:
        return await self._call(lambda: self._create(wave, file))

    def _create(self, wave: str, file: str) -> BatchStatus:
        if file not in self.files:
            raise BackendError(ErrorKind.NOT_FOUND, "no such file", status=404)
        assert all(each.wave != wave for each in self.batches.values()), "a submission was created twice"
        now, lines = _now(), self.files[file]
        fault = self._dice.choice(BATCH_FAULTS) if self._dice.random() < self.faults.batch else ""
        tokens = sum(len(line.body) // 4 for line in lines)
        queued = sum(len(line.body) // 4 for each in self.batches.values() for line in each.lines if not each.has_ended)
        if tokens + queued > self._enqueued_tokens:
            fault = "token limit"
        batch = _ProviderBatch(
            f"batch-{len(self.batches)}", wave, now, now + self._seconds * self._dice.random(), lines, fault
        )
        if fault in ("failed", "bad line", "token limit"):
            batch.ends = now
        self.batches[batch.id] = batch
        return BatchStatus(batch.id, "waiting", reported="validating")

    async def find(self, submission: Submission) -> Sequence[BatchStatus]:
        return await self._call(
            lambda: [self._status(each) for each in self.batches.values() if each.wave == submission.wave]
        )

    async def owns(self, status: BatchStatus, ids: frozenset[str]) -> bool | None:
        return True

    async def withdraw(self, file: str) -> None:
        await self._call(lambda: self.files.pop(file, None))

    async def status(self, batch: str) -> BatchStatus:
        self.polled.set()
        return await self._call(lambda: self._status(self.batches[batch]))

    async def results(self, status: BatchStatus) -> AsyncGenerator[LineResult, None]:
        batch = self.batches[status.id]
        await self._call(lambda: None)
        if batch.fault == "lost file":
            raise BackendError(ErrorKind.NOT_FOUND, "no such file", status=404)
        for result in list(batch.outcomes.values()):
            if self._dice.random() < self.faults.cut:
                raise BackendError(ErrorKind.CONNECTION, "the connection broke")
            yield result

    def _status(self, batch: _ProviderBatch) -> BatchStatus:
        if _now() < batch.ends:
            return BatchStatus(batch.id, "waiting", len(batch.lines), 0, "in_progress")
        if not batch.has_ended:
            batch.has_ended = True
            self._end(batch)
        match batch.fault:
            case "failed" | "bad line":
                error = BackendError(ErrorKind.BAD_REQUEST, "a line is not JSON", status=400)
                if batch.fault == "failed":
                    error = BackendError(ErrorKind.SERVER, "validation failed", status=503)
                bad = {0: error} if batch.fault == "bad line" else {}
                return BatchStatus(batch.id, "failed", reported="failed", error=error, bad_lines=bad)
            case "token limit":
                said = f"Enqueued token limit reached. Limit: {self._enqueued_tokens:,.0f} enqueued tokens."
                error = BackendError(ErrorKind.BAD_REQUEST, said.replace("inf", "90,000"), status=400)
                return BatchStatus(batch.id, "failed", reported="failed", error=error, is_over_limit=True)
        return BatchStatus(batch.id, "ended", len(batch.lines), len(batch.outcomes), "completed", (batch.id,))

    def _end(self, batch: _ProviderBatch) -> None:
        if batch.fault in ("failed", "bad line", "token limit"):
            self.refused_for_tokens += batch.fault == "token limit"
            return
        for line in batch.lines:
            self._process(batch, line)

    def _process(self, batch: _ProviderBatch, line: BatchLine) -> None:
        fault = self._dice.choice(LINE_FAULTS) if self._dice.random() < self.faults.line else ""
        if batch.fault in ("expired", "cancelled") and self._dice.random() < 0.5:
            fault = batch.fault
        match fault:
            case "expired" | "cancelled" | "errored":
                batch.outcomes[line.id] = LineFailed(line.id, not_processed(fault))
            case "refused":
                batch.outcomes[line.id] = LineFailed(line.id, not_processed("rate limited"))
            case _:
                self.billed[_name(line.body)] += 1
                if fault == "missing" or batch.fault == "lost file":
                    self.lost[_name(line.body)] += 1
                else:
                    batch.outcomes[line.id] = Answered(line.id, answer(line.body))

    async def _call(self, effect: Callable[[], T]) -> T:
        await asyncio.sleep(self._dice.random())
        fault = self._dice.choice(CALL_FAULTS) if self._dice.random() < self.faults.call else ""
        if fault == "before":
            raise BackendError(ErrorKind.SERVER, "HTTP 500", status=500)
        result = effect()
        if fault == "after":
            raise BackendError(ErrorKind.UNAVAILABLE, "HTTP 502", status=502)
        if fault == "lost answer":
            raise BackendError(ErrorKind.CONNECTION, "the connection broke")
        return result


def turns_of(number: int, longest: int = 6) -> int:
    return number % longest + 1


def answer(body: bytes) -> bytes:
    """The response of the scripted model: tool calls, then an answer that depends on all of the conversation."""
    request = orjson.loads(body)
    messages = request["messages"]
    number = int(next(each["content"] for each in messages if each["role"] == "user").split()[-1])
    done = sum(each["role"] == "assistant" for each in messages)
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if request.get("tools") and done + 1 < turns_of(number):
        function = {"name": "look", "arguments": orjson.dumps({"key": f"{number}-{done}"}).decode()}
        message["tool_calls"] = [{"id": f"call-{number}-{done}", "type": "function", "function": function}]
    else:
        message["content"] = blake2b(orjson.dumps(messages), digest_size=8).hexdigest()
    usage = {"prompt_tokens": len(body) // 4, "completion_tokens": 20}
    return orjson.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})


def _name(body: bytes) -> str:
    return blake2b(body, digest_size=8).hexdigest()


def _now() -> float:
    return asyncio.get_running_loop().time()
