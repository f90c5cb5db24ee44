"""The chat template of a model, found by showing it a marker: put around prompts here, so that a list of them can be
sent as plain texts."""

from dataclasses import replace
from typing import Any

import orjson

from ..backends.http.client import ServerClient
from ..backends.http.json_body import BadJson, loads
from ..backends.probe import admin_url
from ..core.errors import BackendError
from ..core.fast_dataclass import dataclass

_WITHIN = 10.0
_MARKS = ("Q7xMarkerZ3", "Another 42 marker, with words.", "\n  One more, with space around it. \n")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """What stands before and behind a user's message."""

    before: str = ""
    behind: str = ""
    trims: bool = False
    """Space at the ends of a message is left out, as many templates do."""

    def around(self, prompt: str) -> str:
        return f"{self.before}{prompt.strip() if self.trims else prompt}{self.behind}"


async def find_chat_template(server: ServerClient, model: str) -> ChatTemplate | None:
    """None from a server that does not show its template, or whose template does more than to stand around a text."""
    found: ChatTemplate | None = None
    for mark in _MARKS:
        conversation = [{"role": "user", "content": mark}]
        tokens = await _tokens(server, {"model": model, "messages": conversation, "add_generation_prompt": True})
        if tokens is None:
            return None
        shown = await _ask(server, "/detokenize", {"model": model, "tokens": tokens})
        text = shown.get("prompt") if isinstance(shown, dict) else None
        if not isinstance(text, str) or text.count(mark.strip()) != 1:
            return None
        found = found or ChatTemplate(text[: text.index(mark)], text[text.index(mark) + len(mark) :])
        if found.around(mark) != text:
            found = replace(found, trims=True)
        again = {"model": model, "prompt": text, "add_special_tokens": False}
        if found.around(mark) != text or await _tokens(server, again) != tokens:
            return None
    return found


async def has_batch_route(server: ServerClient) -> bool:
    """Whether it takes many conversations in one request."""
    try:
        return b"/v1/chat/completions/batch" in await server.get(admin_url(server.root, "/openapi.json"), _WITHIN)
    except BackendError:
        return False


async def _tokens(server: ServerClient, body: dict[str, Any]) -> list[int] | None:
    said = await _ask(server, "/tokenize", body)
    tokens = said.get("tokens") if isinstance(said, dict) else None
    return tokens if isinstance(tokens, list) and tokens else None


async def _ask(server: ServerClient, path: str, body: dict[str, Any]) -> Any:
    said = await server.post_or_none(admin_url(server.root, path), orjson.dumps(body), _WITHIN)
    try:
        return None if said is None else loads(said)
    except BadJson:
        return None
