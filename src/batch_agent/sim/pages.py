"""What the server says beside answers: its models, its tokens, its routes."""

import time
from collections.abc import Iterable
from typing import Any

import orjson

from .config import SimConfig
from .prompts import UNREADABLE, chat_prompt
from .refusal import invalid, unknown_model
from .tokens import decode, encode, from_ids, to_ids


class Pages:
    """Bodies in, bodies out; those with a body raise RequestError."""

    def __init__(self, config: SimConfig) -> None:
        self._model = config.model
        self._context = config.context_tokens
        self._created = int(time.time())

    def models(self) -> bytes:
        model = {"id": self._model, "object": "model", "created": self._created, "owned_by": "batch-agent-sim"}
        return orjson.dumps({"object": "list", "data": [{**model, "max_model_len": self._context}]})

    def tokenize(self, body: dict[str, Any]) -> bytes:
        self._check(body)
        ids = to_ids(chat_prompt(body) if "messages" in body else _text(body))
        return orjson.dumps({"count": len(ids), "max_model_len": self._context, "tokens": ids, "token_strs": None})

    def detokenize(self, body: dict[str, Any]) -> bytes:
        self._check(body)
        try:
            return orjson.dumps({"prompt": decode(from_ids(body["tokens"]))})
        except UNREADABLE as error:
            raise invalid(f"tokens must be a list of token ids: {error!r}", "body.tokens") from error

    def _check(self, body: dict[str, Any]) -> None:
        model = body.get("model")
        if model is not None and model != self._model:
            raise unknown_model(model)


def openapi(posts: Iterable[bytes], gets: Iterable[bytes]) -> bytes:
    """Which routes there are, and nothing about what they take."""
    methods = [(path, "post") for path in posts] + [(path, "get") for path in gets]
    paths: dict[str, Any] = {path.decode(): {method: {"responses": {}}} for path, method in methods}
    return orjson.dumps({"openapi": "3.1.0", "info": {"title": "batch-agent-sim", "version": "0"}, "paths": paths})


def _text(body: dict[str, Any]) -> bytes:
    try:
        return encode(body["prompt"])
    except UNREADABLE as error:
        raise invalid(f"prompt must be a text: {error!r}", "body.prompt") from error
