"""Turns request bodies into sequences for the engine, with the replies they will generate."""

import itertools
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from .answer import Reply, reply_of
from .author import Author
from .config import SimConfig
from .faults import FaultOrder
from .openai import Wire
from .script import Script
from .sequence import Sequence as EngineSequence
from .tokens import TOKEN_BYTES, block_hashes, from_ids, pad, render_chat, to_ids

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


class Generation(NamedTuple):
    """A request ready to run."""

    wire: Wire
    replies: Sequence[Reply]
    sequences: list[EngineSequence]
    prompt: bytes
    order: FaultOrder | None
    is_stream: bool
    include_usage: bool


class Requests:
    """Reads the bodies of one server's requests. Everything raises RequestError."""

    def __init__(self, config: SimConfig, script: Script) -> None:
        self._config = config
        self._author = Author(script, config.faults)
        self._numbers = itertools.count(1)
        self._context = config.context_tokens
        self._created = int(time.time())

    def models(self) -> bytes:
        model = {"id": self._config.model, "object": "model", "created": self._created, "owned_by": "batch-agent-sim"}
        return orjson.dumps({"object": "list", "data": [{**model, "max_model_len": self._config.context_tokens}]})

    def chat(self, body: dict[str, Any]) -> Generation:
        self._check(body)
        data = _chat_prompt(body)
        limit = self._limit(body, len(data) // TOKEN_BYTES)
        try:
            answer = self._author.chat(body, data, _forced_tokens(body, limit))
        except _UNREADABLE as error:
            raise RequestError(f"the request cannot be answered: {error!r}") from error
        return self._generation(body, [(data, reply_of(answer, limit))], is_chat=True)

    def completion(self, body: dict[str, Any]) -> Generation:
        self._check(body)
        parts = []
        for data in _prompts(body.get("prompt")):
            limit = self._limit(body, len(data) // TOKEN_BYTES, default=16)
            answer = self._author.text(data, _forced_tokens(body, limit))
            parts.append((data, reply_of(answer, limit)))
        return self._generation(body, parts, is_chat=False)

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
        context = self._context
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

    def _generation(self, body: dict[str, Any], parts: list[tuple[bytes, Reply]], *, is_chat: bool) -> Generation:
        config = self._config
        is_stream = bool(body.get("stream"))
        priority = body.get("priority") or 0
        if not isinstance(priority, int):
            raise RequestError(f"priority must be a whole number, got {priority!r}", param="priority")
        salt = body.get("cache_salt") or ""
        emit_every = config.chunk_tokens if is_stream and not config.zero_latency else 0
        sequences = []
        for data, reply in parts:
            hashes = block_hashes(data + reply.data, config.block_size, salt) if config.prefix_caching else ()
            sequences.append(EngineSequence(len(data) // TOKEN_BYTES, reply.tokens, hashes, priority, emit_every))
        return Generation(
            wire=Wire(next(self._numbers), int(time.time()), config.model, is_chat),
            replies=[reply for _, reply in parts],
            sequences=sequences,
            prompt=parts[0][0],
            order=parts[0][1].answer.fault,
            is_stream=is_stream,
            include_usage=is_stream and bool((body.get("stream_options") or {}).get("include_usage")),
        )


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
