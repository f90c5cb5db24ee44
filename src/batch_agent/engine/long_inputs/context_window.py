"""Context window: which tasks fit the model, determined before they are sent."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import blake2b

import orjson

from ...core.agent_config import AgentConfig, Job
from ...core.errors import ErrorKind
from ...core.messages import Prompt
from ...core.protocols.backend import Backend, CountsTokens
from ...core.results import AgentError
from ...core.spec import BatchSpec

_BYTES_PER_TOKEN = 4.0
"""In UTF-8 bytes, because languages differ less in bytes than in characters: 4 for English, 3 to 5 for Chinese or
Russian."""
_MIN_BYTES_PER_TOKEN = 2.5
"""Bytes per token of dense text (code, tables, numbers): a safe estimate if the server does not count."""
_LEARNING_RATE = 0.2
_UNCERTAINTY = 2.0
_NOT_WORTH_COUNTING = 4.0
"""A text whose estimate exceeds the room by this factor is not counted."""
_UNCOUNTED_MARGIN = 1.5
"""Without a count, an input is rejected only if its estimate exceeds the room by this factor. The server decides the
rest."""
_MAX_ANSWER_RESERVE = 1024
_TEMPLATE_TOKENS = 64
"""Tokens that a chat template may add."""
_MAX_CONCURRENT_COUNTS = 8
_MAX_KEPT_COUNTS = 100_000

Count = Callable[[str], Awaitable[int | None]]
ADVICE = "Shorten it, run with oversized='chunk', or use a model with a larger context window."


class ContextWindow:
    """Room for tasks in the context window, next to the shared prompt and the answer. Short texts need no count: a
    token is at least a byte, and rarely less than half its average length. Longer ones are counted by the server, if it
    can."""

    def __init__(self, tokens: int, *, prefix: int = 0, answer: int = 0, count: Count | None = None) -> None:
        """`prefix`, `answer`: tokens that are reserved for the shared prompt and the answer."""
        self.tokens = tokens
        self.answer = answer
        self.prefix = prefix + min(_TEMPLATE_TOKENS, tokens // 32)
        self.room = tokens - answer - self.prefix
        self._count = count
        self._permits = asyncio.Semaphore(_MAX_CONCURRENT_COUNTS)
        self._bytes_per_token = _BYTES_PER_TOKEN

    async def fit(self, job: Job) -> Job:
        """The job, with a problem set if it does not fit."""
        if job.problem is not None or (tokens := await self.oversized_tokens(job.task)) is None:
            return job
        return self.reject(job, tokens, ADVICE)

    def reject(self, job: Job, tokens: int, advice: str) -> Job:
        """The job with the problem that its task of about `tokens` does not fit."""
        reserved = f", of which {self.answer:,} are reserved for the answer" if self.answer else ""
        message = (
            f"Input {job.index} needs a prompt of about {tokens + self.prefix:,} tokens; the context window has "
            f"{self.tokens:,}{reserved}. {advice}"
        )
        return replace(job, problem=AgentError(ErrorKind.CONTEXT_OVERFLOW, message))

    async def oversized_tokens(self, text: str, *, careful: bool = False) -> int | None:
        """Approximate tokens of a text that does not fit; None for one that fits. A text that cannot be counted is
        assumed to fit unless the estimate is far too high; with `careful`, not to fit unless it is far lower."""
        if 4 * len(text) <= self.room or self._max_tokens(text, size := _bytes(text)) <= self.room:
            return None
        estimate = size / self._bytes_per_token
        if self._count is not None and estimate < _NOT_WORTH_COUNTING * max(self.room, self.tokens // 4):
            tokens = await self.count(text)
            if tokens is not None:
                return tokens if tokens > self.room else None
        if careful:
            return int(size / _MIN_BYTES_PER_TOKEN) if size / _MIN_BYTES_PER_TOKEN > self.room else None
        return int(estimate) if estimate + self.prefix > _UNCOUNTED_MARGIN * (self.tokens - self.answer) else None

    async def size(self, text: str) -> float:
        """Tokens of a text, or a high estimate if the server does not count. Deterministic for the same text."""
        tokens = await self.count(text)
        return _bytes(text) / _MIN_BYTES_PER_TOKEN if tokens is None else tokens

    async def count(self, text: str) -> int | None:
        """Tokens of a text as the server counts them; None if it does not."""
        if self._count is None or not text:
            return None
        async with self._permits:
            tokens = await self._count(text)
        if tokens:
            self._bytes_per_token += _LEARNING_RATE * (_bytes(text) / tokens - self._bytes_per_token)
        return tokens

    def _max_tokens(self, text: str, size: int) -> float:
        """Upper estimate of the tokens. Beyond ASCII a byte may be a token, for models that know little of a
        language."""
        rare = min(size, 2 * (size - len(text)))
        return min(size, rare + (size - rare) * _UNCERTAINTY / self._bytes_per_token)


async def open_window(
    spec: BatchSpec, config: AgentConfig, server: Backend, counts: dict[str, int] | None = None
) -> ContextWindow | None:
    """The window of a run's model; None if it is unknown. `counts`: receives the server's counts, by text digest."""
    tokens = spec.context.context_tokens or server.traits.context_tokens
    if tokens is None:
        return None
    count: Count | None = server.count_tokens if isinstance(server, CountsTokens) else None
    if count is not None and counts is not None:
        count = _recording(count, counts)
    prefix = _prompt_text(config.prompt)
    counted = await count(prefix) if count is not None and prefix else None
    taken = counted if counted is not None else int(_bytes(prefix) / _BYTES_PER_TOKEN)
    return ContextWindow(tokens, prefix=taken, answer=_answer_reserve(spec, tokens), count=count)


def digest(text: str) -> str:
    """Key of a text among recorded counts."""
    return blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()


def _recording(count: Count, counts: dict[str, int]) -> Count:
    async def counted(text: str) -> int | None:
        tokens = await count(text)
        if tokens and len(counts) < _MAX_KEPT_COUNTS:
            counts[digest(text)] = tokens
        return tokens

    return counted


def _answer_reserve(spec: BatchSpec, window: int) -> int:
    """Tokens reserved for the answer. Some servers treat max_tokens as a limit only, others reject a prompt that does
    not leave room for it. No input that might work is rejected, but chunks are made to work everywhere."""
    if (max_tokens := spec.sampling.max_tokens) is None:
        return min(_MAX_ANSWER_RESERVE, window // 8)
    return min(max_tokens, window * 7 // 8 if spec.context.oversized == "chunk" else window // 2)


def _prompt_text(prompt: Prompt) -> str:
    return "\n".join([prompt.system, *(orjson.dumps(tool).decode() for tool in prompt.tools)]).strip()


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
