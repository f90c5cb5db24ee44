"""Chat template of a model, found by rendering a marker with the server's own tokenizer.

The client applies it to each prompt, so that a batch can be sent as plain texts."""

from dataclasses import replace
from typing import Any

import orjson

from ..backends.http.client import ServerClient
from ..backends.http.json_body import BadJson, loads
from ..backends.probe import admin_url
from ..core.errors import BackendError
from ..core.fast_dataclass import dataclass

_TIMEOUT = 10.0
_MARKERS = ("Q7xMarkerZ3", "Another 42 marker, with words.", "\n  One more, with space around it. \n")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The text before and after a user's message."""

    prefix: str = ""
    suffix: str = ""
    strips: bool = False
    """Whitespace at the ends of a message is removed, as many templates do."""

    def render(self, prompt: str) -> str:
        return f"{self.prefix}{prompt.strip() if self.strips else prompt}{self.suffix}"


async def find_chat_template(server: ServerClient, model: str) -> ChatTemplate | None:
    """None if the server does not show its template, or if the template does more than surround the message."""
    found: ChatTemplate | None = None
    for marker in _MARKERS:
        messages = [{"role": "user", "content": marker}]
        tokens = await _tokenize(server, {"model": model, "messages": messages, "add_generation_prompt": True})
        if tokens is None:
            return None
        shown = await _post(server, "/detokenize", {"model": model, "tokens": tokens})
        text = shown.get("prompt") if isinstance(shown, dict) else None
        if not isinstance(text, str) or text.count(marker.strip()) != 1:
            return None
        found = found or ChatTemplate(text[: text.index(marker)], text[text.index(marker) + len(marker) :])
        if found.render(marker) != text:
            found = replace(found, strips=True)
        as_prompt = {"model": model, "prompt": text, "add_special_tokens": False}
        if found.render(marker) != text or await _tokenize(server, as_prompt) != tokens:
            return None
    return found


async def has_batch_route(server: ServerClient) -> bool:
    """Whether the server accepts many conversations in one request."""
    try:
        return b"/v1/chat/completions/batch" in await server.get(admin_url(server.root, "/openapi.json"), _TIMEOUT)
    except BackendError:
        return False


async def _tokenize(server: ServerClient, body: dict[str, Any]) -> list[int] | None:
    reply = await _post(server, "/tokenize", body)
    tokens = reply.get("tokens") if isinstance(reply, dict) else None
    return tokens if isinstance(tokens, list) and tokens else None


async def _post(server: ServerClient, path: str, body: dict[str, Any]) -> Any:
    reply = await server.post_or_none(admin_url(server.root, path), orjson.dumps(body), _TIMEOUT)
    try:
        return None if reply is None else loads(reply)
    except BadJson:
        return None
