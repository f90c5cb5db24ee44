"""Messages of a conversation, and the prompt that all agents of a run share byte for byte."""

import re
from collections.abc import Iterable
from typing import Any, Literal, assert_never

from .fast_dataclass import dataclass
from .images import ImageRef, PlacedImage, text_with_labels
from .schema import JsonSchema

ToolSource = Literal["executed", "shared", "cached", "restored"]
"""Where a result came from: the call's own execution, another call's execution in flight, the cache, or the
checkpoint."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Tool call of the model. `arguments` is the model's own text: re-serialising it would change the prefix."""

    id: str
    name: str
    arguments: str


Placement = Literal["inline", "first", "auto"]
"""Where the result of a shared call stands in a prompt: behind its call, before the agent's own text, or where less has
to be computed."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A tool result that other agents may read too, and its position in the prompt. Put first, it has the same bytes in
    all prompts."""

    heading: str
    """The call with canonical arguments, such as `read_paper(title="BERT")`."""
    rank: int
    """Place among the references of a prompt: the order in which the run's agents first asked for them."""
    readers: int = 1
    """Agents that had asked for it when it was placed."""
    placement: Placement = "first"
    """Never "auto" in a fact: the decision is recorded."""
    moved_chars: int = 0
    """Characters of this agent's prompt behind it, which the server has to compute again if it is placed first."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a tool call. A failure is a result too: the model reads it and continues."""

    call: ToolCall
    content: str
    is_error: bool = False
    seconds: float = 0.0
    source: ToolSource = "executed"
    reference: Reference | None = None
    """None: the result stands behind its call, and nothing else was considered."""
    images: tuple[ImageRef, ...] = ()
    """Images that the tool returned; they stand behind the content."""

    @property
    def is_placed_first(self) -> bool:
        return self.reference is not None and self.reference.placement == "first"


@dataclass(frozen=True, slots=True)
class User:
    text: str
    shared: int = 0
    """Length of the prefix that it shares with other agents' messages, in characters."""
    breaks: tuple[int, ...] = ()
    """Ends of the text that all agents share and of each reference, except the last, which `shared` gives: other
    messages may be the same up to any of them."""
    images: tuple[PlacedImage, ...] = ()
    """Images in the text, in order."""


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning of a model before its text. If the provider signs it, it must be sent back unchanged."""

    text: str = ""
    signature: str = ""
    redacted: str = ""
    """Encrypted reasoning of the provider, instead of a text."""


@dataclass(frozen=True, slots=True)
class Assistant:
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thoughts: tuple[Thought, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResults:
    results: tuple[ToolResult, ...]


Message = User | Assistant | ToolResults


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: JsonSchema


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """Prompt of a run, compared by identity, so that a dialect serialises it once."""

    system: str
    tools: tuple[ToolSpec, ...] = ()
    cache_salt: str | None = None
    """Prompts with different salts never share cache entries of the server."""
    schema: JsonSchema | None = None
    """Schema of the answers; None: text. How the server learns of it, the request says."""


_NAME = r"x-(?:(?:anthropic|amz)-[a-z0-9-]+|[a-z0-9-]+-header|session-id)"
PREAMBLE = re.compile(rf"\A(?:[ \t]*{_NAME}[ \t]*:[^\n]*(?:\n|\Z)\s*)+", re.IGNORECASE)
"""Session headers that some agent CLIs put before the system prompt, such as `x-anthropic-billing-header: cch=...` or
`x-amz-date: ...`; they differ in every session. Lines further down stay, since a prompt may be about such headers; lint
reports them."""


def chat_messages(prompt: Prompt | None, messages: Iterable[Message]) -> list[dict[str, Any]]:
    """A conversation in the format of OpenAI's chat completions, with the system prompt. Reasoning is left out, and an
    image is its label."""
    found: list[dict[str, Any]] = []
    if prompt is not None and prompt.system:
        found.append({"role": "system", "content": prompt.system})
    for message in messages:
        match message:
            case User():
                found.append({"role": "user", "content": text_with_labels(message.text, message.images)})
            case Assistant():
                found.append(_chat_reply(message))
            case ToolResults():
                found += [
                    {"role": "tool", "tool_call_id": each.call.id, "content": result_text(each)}
                    for each in message.results
                ]
            case _:
                assert_never(message)
    return found


def chat_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Tools in the format of OpenAI's chat completions."""
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    ]


def result_text(result: ToolResult) -> str:
    """The content of a tool result, with the label of each image."""
    return "\n".join([result.content, *(f"[{image.label}]" for image in result.images)])


def _chat_reply(message: Assistant) -> dict[str, Any]:
    reply: dict[str, Any] = {"role": "assistant", "content": message.text or (None if message.calls else "")}
    if message.calls:
        reply["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return reply
