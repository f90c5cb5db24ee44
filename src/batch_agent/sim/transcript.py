"""A conversation out of the prompt that it was rendered to."""

import re
from typing import Any, NamedTuple

import orjson

from .tokens import CALL_CLOSING, END, decode

_MESSAGE = re.compile(r"<\|(\w+)\|>(.*?)(?:<//>|\Z)", re.DOTALL)


class Chat(NamedTuple):
    messages: list[dict[str, Any]]
    tools: list[Any] | None


def read_chat(prompt: bytes) -> Chat:
    """The conversation that renders as `prompt`; a prompt without the template's marks is one user's message.

    Raises ValueError where the tools are no JSON.
    """
    text = decode(prompt)
    if not text.startswith("<|"):
        return Chat([{"role": "user", "content": text}], None)
    parts = _MESSAGE.findall(text)
    if parts and parts[-1] == ("assistant", "") and not text.endswith(END.decode()):
        parts.pop()
    tools = orjson.loads(parts.pop(0)[1]) if parts and parts[0][0] == "tools" else None
    return Chat([_message(role, content) for role, content in parts], tools)


def _message(role: str, content: str) -> dict[str, Any]:
    """Whether an answer was calls is all that is known of them: they stay in its text."""
    if role == "assistant" and CALL_CLOSING.decode() in content:
        return {"role": role, "content": content, "tool_calls": [content]}
    return {"role": role, "content": content}
