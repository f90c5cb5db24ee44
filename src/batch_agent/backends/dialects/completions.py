"""Requests that carry many prompts: OpenAI's completions with a list of them, and vLLM's batch of conversations."""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from ...core.errors import SpecError
from ...core.messages import Assistant, Message, ToolResults, User
from ...core.requests import Sampling
from ...core.schema import JsonSchema
from .dialect import dumps

PATH = "/completions"
CHATS_PATH = "/chat/completions/batch"
"""Only vLLM has it. It neither streams nor takes tools."""
_OURS = ("model", "prompt", "messages", "stream", "stream_options")
"""What is asked, and how it is answered: told to stream, the batch of conversations gives each answer's last token."""


def encode(
    prompts: Sequence[str | Sequence[int]],
    model: str,
    sampling: Sampling,
    *,
    stream: bool,
    answer_schema: JsonSchema | None = None,
    only_standard: bool = False,
    is_raw: bool = False,
) -> bytes:
    """One request for all `prompts`: texts that hold their chat template already, or token ids; `is_raw`: texts without
    one, before which the server puts what begins a text.

    `only_standard` leaves out what OpenAI's own API does not know; such a server may put a token of its own before a
    text (never before token ids), and does not say what each prompt cost. Raises SpecError for what no server can
    answer, or would answer otherwise than it is meant."""
    if sampling.max_tokens is None:
        raise SpecError("Completions stop after 16 tokens unless they are told otherwise: set max_tokens.")
    body = _settings(model, sampling, answer_schema)
    if not only_standard:
        body["add_special_tokens"] = is_raw  # or else the template has put them there
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if not only_standard:
            body["stream_options"]["continuous_usage_stats"] = True
    return dumps(body | {"prompt": _prompts(prompts)})


def encode_chats(
    conversations: Sequence[Sequence[Message]],
    model: str,
    sampling: Sampling,
    *,
    system: str = "",
    answer_schema: JsonSchema | None = None,
) -> bytes:
    """One request for all `conversations`, in which no tool was called. The server puts the chat template around each.

    Raises SpecError for what the server would refuse."""
    if not conversations or not all(conversations):
        raise SpecError("A batch needs at least one conversation, and each of them at least one message.")
    before = [{"role": "system", "content": system}] if system else []
    messages = [[*before, *map(_message, conversation)] for conversation in conversations]
    return dumps(_settings(model, sampling, answer_schema) | {"messages": messages})


def _settings(model: str, sampling: Sampling, answer_schema: JsonSchema | None) -> dict[str, Any]:
    if sampling.extra.get("n") not in (None, 1):
        raise SpecError(f"n={sampling.extra['n']!r}: of many prompts in one request, each has one answer.")
    settings = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "max_tokens": sampling.max_tokens,
        "response_format": None if answer_schema is None else _response_format(answer_schema),
    }
    body: dict[str, Any] = {"model": model}
    body |= {name: value for name, value in settings.items() if value is not None}
    return body | {name: value for name, value in sampling.extra.items() if name not in _OURS}


def _response_format(schema: JsonSchema) -> Mapping[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _prompts(prompts: Sequence[str | Sequence[int]]) -> list[str] | list[list[int]]:
    """Servers take texts or token ids, not both in one list; and they refuse all for one that is empty."""
    if isinstance(prompts, str) or not prompts:
        raise SpecError(f"A request needs a list of at least one prompt; got {prompts!r}.")
    if empty := [index for index, prompt in enumerate(prompts) if not len(prompt)]:
        raise SpecError(f"Prompt {empty[0]} is empty: the server would refuse the whole request.")
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    ids = [list(prompt) for prompt in prompts if not isinstance(prompt, str)]
    if texts and ids:
        raise SpecError("The prompts of a request must all be texts, or all be token ids.")
    return texts or ids


def _message(message: Message) -> Mapping[str, str]:
    match message:
        case User():
            return {"role": "user", "content": message.text}
        case Assistant(text, calls):
            if calls:
                raise SpecError(f"A batch of conversations has no tools, but {calls[0].name!r} was called in one.")
            return {"role": "assistant", "content": text}
        case ToolResults():
            raise SpecError("A batch of conversations has no tools, but one of them holds results of calls.")
        case _:
            assert_never(message)
