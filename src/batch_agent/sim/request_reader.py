"""Parser of generation requests, to sequences for the engine and the replies that they generate."""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

from .answer import SimAnswer, SimReply, reply_of
from .answer_script import AnswerScript
from .generation import Generation, PromptFault
from .kv_engine.sequence import Sequence
from .openai_responses import OpenAIBytes
from .prompts import UNREADABLE, chat_prompt, text_prompts
from .request_errors import RequestError, invalid, too_long, unknown_model
from .sim_config import Script, SimConfig
from .tokens import TOKEN_BYTES, block_hashes

Part = tuple[bytes, SimReply]
_TIERS = ("auto", "default", "flex", "priority")


class Requests:
    """Parses the bodies of generation requests. Methods raise RequestError."""

    def __init__(self, config: SimConfig, script: Script) -> None:
        self._config = config
        self._script = AnswerScript(script, config.faults)
        self._numbers = itertools.count(1)
        self._context = config.context_tokens

    def chat(self, body: dict[str, Any]) -> Generation:
        self._check(body)
        return self._generation(body, [self._chat_part(body)], is_chat=True)

    def batch_chat(self, body: dict[str, Any]) -> Generation:
        """Parses many conversations with one set of options, without streaming and tools."""
        self._check(body)
        conversations = body.get("messages")
        if not isinstance(conversations, list) or not conversations:
            raise invalid("messages must be a list of conversations", "body.messages")
        if not all(isinstance(messages, list) and messages for messages in conversations):
            raise invalid("a conversation must be a list with at least one message", "body.messages")
        shared = {**body, "tools": None, "stream": False, "stream_options": None}
        parts = [self._chat_part({**shared, "messages": messages}) for messages in conversations]
        return self._generation(shared, parts, is_chat=True, reports_cached=False)

    def completion(self, body: dict[str, Any]) -> Generation:
        self._check(body)
        if body.get("echo"):
            raise RequestError("the simulated engine does not repeat prompts: echo must be false", param="echo")
        prompts = text_prompts(body.get("prompt"), self._config)
        limits = [self._limit(body, len(data) // TOKEN_BYTES, default=16) for data in prompts]
        if not all(prompts):
            raise RequestError("The decoder prompt cannot be empty", late=True)
        parts = [self._part(self._script.completion, body, *each) for each in zip(prompts, limits, strict=True)]
        return self._generation(body, parts, is_chat=False)

    def _check(self, body: dict[str, Any]) -> None:
        model = body.get("model")
        if model is not None and model != self._config.model:
            raise unknown_model(model)
        if body.get("n", 1) not in (1, None):
            raise RequestError("the simulated engine answers with one choice: n must be 1", param="n")

    def _chat_part(self, body: dict[str, Any]) -> Part:
        data = chat_prompt(body)
        return self._part(self._script.chat, body, data, self._limit(body, len(data) // TOKEN_BYTES))

    def _part(
        self,
        answer: Callable[[Mapping[str, Any], bytes, int | None], SimAnswer],
        body: dict[str, Any],
        data: bytes,
        limit: int,
    ) -> Part:
        # With ignore_eos, the answer is longer than the limit, so that it ends at the limit.
        forced_tokens = limit + 1 if body.get("ignore_eos") else None
        try:
            return data, reply_of(answer(body, data, forced_tokens), limit)
        except UNREADABLE as error:
            raise RequestError(f"the request cannot be answered: {error!r}") from error

    def _limit(self, body: dict[str, Any], prompt_tokens: int, default: int | None = None) -> int:
        """The maximum number of generated tokens."""
        max_tokens = body.get("max_completion_tokens") or body.get("max_tokens", default)
        if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
            raise RequestError(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
        if prompt_tokens + (max_tokens or 1) > self._context:
            raise too_long(self._context, prompt_tokens, max_tokens or 0)
        return max_tokens if max_tokens is not None else self._context - prompt_tokens

    def _generation(
        self, body: dict[str, Any], parts: list[Part], *, is_chat: bool, reports_cached: bool = True
    ) -> Generation:
        is_stream = bool(body.get("stream"))
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise invalid("stream_options must be an object", "body.stream_options")
        if options and not is_stream:
            raise RequestError("Stream options can only be defined when `stream=True`.", param="stream_options")
        include_usage = bool(options.get("include_usage"))
        chunk_tokens = body.get("stream_interval") or self._config.chunk_tokens
        if not isinstance(chunk_tokens, int) or chunk_tokens < 1:
            raise RequestError(f"stream_interval must be at least 1, got {chunk_tokens}.", param="stream_interval")
        return Generation(
            encoder=OpenAIBytes(next(self._numbers), int(time.time()), self._config.model, is_chat, _tier(body)),
            replies=[reply for _, reply in parts],
            sequences=self._sequences(body, parts, chunk_tokens if is_stream else 0),
            prompt_faults=[
                PromptFault(index, data, reply.answer.fault)
                for index, (data, reply) in enumerate(parts)
                if reply.answer.fault
            ],
            is_stream=is_stream,
            include_usage=include_usage,
            continuous_usage=include_usage and bool(options.get("continuous_usage_stats")),
            reports_cached=reports_cached,
            chunk_tokens=chunk_tokens,
        )

    def _sequences(self, body: dict[str, Any], parts: list[Part], chunk_tokens: int) -> list[Sequence]:
        config = self._config
        priority = body.get("priority") or 0
        if not isinstance(priority, int):
            raise RequestError(f"priority must be an integer, got {priority!r}", param="priority")
        salt = body.get("cache_salt") or ""
        emit_every = 0 if config.zero_latency else chunk_tokens
        sequences = []
        for data, reply in parts:
            hashes = block_hashes(data + reply.data, config.block_size, salt) if config.prefix_caching else ()
            sequences.append(Sequence(len(data) // TOKEN_BYTES, reply.tokens, hashes, priority, emit_every))
        return sequences


def _tier(body: dict[str, Any]) -> str | None:
    """The service tier that processes a request; None if the request names none."""
    tier = body.get("service_tier")
    if tier is None:
        return None
    if tier not in _TIERS:
        raise RequestError(f"service_tier must be one of {', '.join(_TIERS)}, got {tier!r}", param="service_tier")
    return "default" if tier == "auto" else str(tier)
