"""The model's window: which tasks fit it, known before they are sent."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import blake2b

import orjson

from ..core.agent_config import AgentConfig, Job
from ..core.errors import ErrorKind
from ..core.messages import Prompt
from ..core.protocols import Backend, CountsTokens
from ..core.results import AgentError
from ..core.spec import BatchSpec

_BYTES_PER_TOKEN = 4.0
"""Of UTF-8, in which languages differ less than in characters: 4 for English, 3 to 5 for Chinese or Russian."""
_DENSEST = 2.5
"""Bytes per token of what is safe to send unless somebody counts: code, tables, numbers."""
_LEARNING = 0.2
_DOUBT = 2.0
_FAR_OFF = 4.0
"""An estimate of so many times the room is not worth a count."""
_CLEARLY = 1.5
"""Nobody can count: the estimate must be beyond the room by this for an input to be refused. The server knows."""
_MOST_FOR_ANSWER = 1024
_TEMPLATE = 64
"""Tokens that a chat template may add."""
_COUNTS_AT_ONCE = 8
_MOST_KEPT_COUNTS = 100_000

Count = Callable[[str], Awaitable[int | None]]
ADVICE = "Shorten it, run with oversized='chunk', or use a model with a larger window."


class ContextWindow:
    """What fits beside the prompt that all agents share, and beside the answer. Short texts cost no request: a token is
    at least a byte, and hardly ever half of what it is on average. Others are counted by the server, if it counts."""

    def __init__(self, tokens: int, *, prefix: int = 0, answer: int = 0, count: Count | None = None) -> None:
        """`prefix`, `answer`: tokens of the window that are not for tasks."""
        self.tokens = tokens
        self.answer = answer
        self.prefix = prefix + min(_TEMPLATE, tokens // 32)
        self.room = tokens - answer - self.prefix
        self._count = count
        self._turns = asyncio.Semaphore(_COUNTS_AT_ONCE)
        self._bytes_per_token = _BYTES_PER_TOKEN

    async def fit(self, job: Job) -> Job:
        """The job, with a problem if it does not fit."""
        if job.problem is not None or (tokens := await self.overflow(job.task)) is None:
            return job
        return self.refusal(job, tokens, ADVICE)

    def refusal(self, job: Job, tokens: int, advice: str) -> Job:
        """The job with the problem that it has about so many tokens too many."""
        kept = f", of which {self.answer:,} are kept for the answer" if self.answer else ""
        message = (
            f"Input {job.index} makes a prompt of about {tokens + self.prefix:,} tokens; the model's window is "
            f"{self.tokens:,}{kept}. {advice}"
        )
        return replace(job, problem=AgentError(ErrorKind.CONTEXT_OVERFLOW, message))

    async def overflow(self, text: str, *, careful: bool = False) -> int | None:
        """About how many tokens a text has that does not fit; None for one that does. One of which nobody knows is
        taken to fit, unless by a wide margin; with `careful`, not to fit, unless by a wide margin."""
        if 4 * len(text) <= self.room or self._most(text, size := _bytes(text)) <= self.room:
            return None
        estimate = size / self._bytes_per_token
        if self._count is not None and estimate < _FAR_OFF * max(self.room, self.tokens // 4):
            tokens = await self.count(text)
            if tokens is not None:
                return tokens if tokens > self.room else None
        if careful:
            return int(size / _DENSEST) if size / _DENSEST > self.room else None
        return int(estimate) if estimate + self.prefix > _CLEARLY * (self.tokens - self.answer) else None

    async def size(self, text: str) -> float:
        """Its tokens, or rather more than it has where the server does not say: the same for the same text."""
        tokens = await self.count(text)
        return _bytes(text) / _DENSEST if tokens is None else tokens

    async def count(self, text: str) -> int | None:
        """The tokens of a text, if the server says."""
        if self._count is None or not text:
            return None
        async with self._turns:
            tokens = await self._count(text)
        if tokens:
            self._bytes_per_token += _LEARNING * (_bytes(text) / tokens - self._bytes_per_token)
        return tokens

    def _most(self, text: str, size: int) -> float:
        """Tokens that it hardly ever exceeds. Beyond ASCII a byte may be a token, for models that know little of a
        language."""
        rare = min(size, 2 * (size - len(text)))
        return min(size, rare + (size - rare) * _DOUBT / self._bytes_per_token)


async def open_window(
    spec: BatchSpec, rules: AgentConfig, server: Backend, counts: dict[str, int] | None = None
) -> ContextWindow | None:
    """None where nobody knows the window. `counts`: where the server's counts are kept, by digests of their texts."""
    tokens = spec.context.context_tokens or server.traits.context_tokens
    if tokens is None:
        return None
    count: Count | None = server.count_tokens if isinstance(server, CountsTokens) else None
    if count is not None and counts is not None:
        count = _kept(count, counts)
    prefix = _written(rules.prompt)
    counted = await count(prefix) if count is not None and prefix else None
    taken = counted if counted is not None else int(_bytes(prefix) / _BYTES_PER_TOKEN)
    return ContextWindow(tokens, prefix=taken, answer=_for_answer(spec, tokens), count=count)


def digest(text: str) -> str:
    """The name of a text among kept counts."""
    return blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()


def _kept(count: Count, counts: dict[str, int]) -> Count:
    async def counted(text: str) -> int | None:
        tokens = await count(text)
        if tokens and len(counts) < _MOST_KEPT_COUNTS:
            counts[digest(text)] = tokens
        return tokens

    return counted


def _for_answer(spec: BatchSpec, window: int) -> int:
    """A server may take max_tokens for a limit only, or may refuse a prompt that does not leave so many. Nothing is
    refused for it that might work, but parts are made to work everywhere."""
    if (wanted := spec.sampling.max_tokens) is None:
        return min(_MOST_FOR_ANSWER, window // 8)
    return min(wanted, window * 7 // 8 if spec.context.oversized == "chunk" else window // 2)


def _written(prompt: Prompt) -> str:
    return "\n".join([prompt.system, *(orjson.dumps(tool).decode() for tool in prompt.tools)]).strip()


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
