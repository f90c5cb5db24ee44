"""Turns request bodies into sequences for the engine, with the replies they will generate."""

import itertools
import struct
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from batch_agent.sim.answer import Answer, Reply, reply_of
from batch_agent.sim.config import SimConfig
from batch_agent.sim.faults import FaultOrder
from batch_agent.sim.openai import Wire
from batch_agent.sim.script import Author, Script
from batch_agent.sim.sequence import Sequence as EngineSequence
from batch_agent.sim.tokens import TOKEN_BYTES, block_hashes, from_ids, pad, render_chat, to_ids

_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, struct.error)


class RequestError(Exception):
    """The request is wrong: answered with this status and these words."""

    def __init__(
        self, message: str, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


@dataclass(frozen=True, slots=True)
class Generation:
    """A request ready to run."""

    wire: Wire
    replies: Sequence[Reply]
    sequences: list[EngineSequence]
    prompt_key: int
    order: FaultOrder | None
    is_stream: bool
    include_usage: bool


class Requests:
    """Reads the bodies of one server's requests. Everything raises RequestError."""

    def __init__(self, config: SimConfig, script: Script) -> None:
        self._config = config
        self._author = Author(script, config.faults)
        self._numbers = itertools.count(1)
        self._keys = itertools.count(1)
        self._created = int(time.time())

    def models(self) -> bytes:
        model = {"id": self._config.model, "object": "model", "created": self._created, "owned_by": "batch-agent-sim"}
        return orjson.dumps({"object": "list", "data": [{**model, "max_model_len": self._config.context_tokens}]})

    def chat(self, body: dict[str, Any]) -> Generation:
        self._check(body)
        data = _chat_prompt(body)
        key = zlib.crc32(data)
        limit = self._limit(body, len(data) // TOKEN_BYTES)
        try:
            answer = self._author.chat(body, key, _forced_tokens(body, limit))
        except _UNREADABLE as error:
            raise RequestError(f"the request cannot be answered: {error!r}") from error
        return self._generation(body, key, [data], [answer], [limit], is_chat=True)

    def completion(self, body: dict[str, Any]) -> Generation:
        self._check(body)
        prompts = _prompts(body.get("prompt"))
        limits = [self._limit(body, len(data) // TOKEN_BYTES, default=16) for data in prompts]
        answers = [
            self._author.text(zlib.crc32(data), _forced_tokens(body, limit))
            for data, limit in zip(prompts, limits, strict=True)
        ]
        return self._generation(body, 0, prompts, answers, limits, is_chat=False)

    def tokenize(self, body: dict[str, Any]) -> bytes:
        self._check(body)
        data = _chat_prompt(body) if "messages" in body else _prompts(body.get("prompt"))[0]
        ids = to_ids(data)
        return orjson.dumps(
            {"count": len(ids), "max_model_len": self._config.context_tokens, "tokens": ids, "token_strs": None}
        )

    def _check(self, body: dict[str, Any]) -> None:
        model = body.get("model")
        if model is not None and model != self._config.model:
            raise RequestError(f"The model `{model}` does not exist.", 404, "NotFoundError", "model")
        if body.get("n", 1) not in (1, None):
            raise RequestError("the simulated engine answers with one choice: n must be 1", param="n")

    def _limit(self, body: dict[str, Any], prompt_tokens: int, default: int | None = None) -> int:
        """How many tokens may be generated."""
        context = self._config.context_tokens
        asked = body.get("max_completion_tokens") or body.get("max_tokens", default)
        if asked is not None and (not isinstance(asked, int) or asked < 1):
            raise RequestError(f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
        if prompt_tokens + (asked or 1) > context:
            raise RequestError(
                f"This model's maximum context length is {context} tokens. However, you requested {asked or 0} output "
                f"tokens and your prompt contains at least {prompt_tokens} input tokens, for a total of at least "
                f"{prompt_tokens + (asked or 0)} tokens. Please reduce the length of the input prompt or the number of "
                "requested output tokens.",
                param="input_tokens",
            )
        return asked if asked is not None else context - prompt_tokens

    def _generation(
        self,
        body: dict[str, Any],
        prompt_key: int,
        prompts: list[bytes],
        answers: list[Answer],
        limits: list[int],
        *,
        is_chat: bool,
    ) -> Generation:
        is_stream = bool(body.get("stream"))
        replies = [reply_of(answer, limit) for answer, limit in zip(answers, limits, strict=True)]
        emit_every = self._config.chunk_tokens if is_stream and not self._config.zero_latency else 0
        salt = body.get("cache_salt") or ""
        priority = body.get("priority") or 0
        if not isinstance(priority, int):
            raise RequestError(f"priority must be a whole number, got {priority!r}", param="priority")
        sequences = [
            EngineSequence(
                key=next(self._keys),
                prompt_tokens=len(data) // TOKEN_BYTES,
                output_tokens=reply.tokens,
                hashes=block_hashes(data + reply.data, self._config.block_size, salt),
                priority=priority,
                emit_every=emit_every,
            )
            for data, reply in zip(prompts, replies, strict=True)
        ]
        wire = Wire(next(self._numbers), int(time.time()), self._config.model, is_chat)
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return Generation(wire, replies, sequences, prompt_key, answers[0].fault, is_stream, usage)


def _forced_tokens(body: dict[str, Any], limit: int) -> int | None:
    """The length of an answer that may not end by itself: one more than the limit, so that the limit ends it."""
    return limit + 1 if body.get("ignore_eos") else None


def _chat_prompt(body: dict[str, Any]) -> bytes:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list with at least one message", param="messages")
    try:
        return render_chat(messages, body.get("tools"))
    except _UNREADABLE as error:
        raise RequestError(f"a message cannot be read: {error!r}", param="messages") from error


def _prompts(prompt: Any) -> list[bytes]:
    """A prompt is a text or a list of token ids; or it is a list of such prompts."""
    many = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
    try:
        prompts = [pad(one.encode()) if isinstance(one, str) else from_ids(one) for one in many]
    except _UNREADABLE as error:
        raise RequestError(f"the prompt is no text and no list of token ids: {error!r}", param="prompt") from error
    if not all(prompts):
        raise RequestError("the prompt is empty", param="prompt")
    return prompts
