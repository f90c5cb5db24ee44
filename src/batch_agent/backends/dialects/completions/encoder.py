"""Requests that carry many prompts: OpenAI's completions with a list of them, and vLLM's batch of conversations."""

from collections.abc import Sequence
from typing import Any

from ....core.errors import SpecError
from ....core.json import dumps
from ....core.requests import Sampling

PATH = "/completions"
CHATS_PATH = "/chat/completions/batch"
"""Only vLLM has it. It neither streams nor takes tools."""
_OURS = ("model", "prompt", "messages", "stream", "stream_options")
"""What is asked, and how it is answered: told to stream, the batch of conversations gives each answer's last token."""


def encode(
    prompts: Sequence[str], model: str, sampling: Sampling, *, only_standard: bool = False, is_raw: bool = False
) -> bytes:
    """One request for all `prompts`, answered as a stream: texts that hold their chat template already; `is_raw`: texts
    without one, before which the server puts what begins a text.

    `only_standard` leaves out what OpenAI's own API does not know; such a server may put a token of its own before a
    text, and does not say what each prompt cost. Raises SpecError for what no server can answer, or would answer
    otherwise than it is meant."""
    if sampling.max_tokens is None:
        raise SpecError("Completions stop after 16 tokens unless they are told otherwise: set max_tokens.")
    if empty := [index for index, prompt in enumerate(prompts) if not prompt]:
        raise SpecError(f"Prompt {empty[0]} is empty: the server would refuse the whole request.")
    body = _settings(model, sampling)
    told: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    if not only_standard:
        body["add_special_tokens"] = is_raw  # or else the template has put them there
        told["stream_options"]["continuous_usage_stats"] = True
    return dumps(body | told | {"prompt": list(prompts)})


def encode_chats(prompts: Sequence[str], model: str, sampling: Sampling) -> bytes:
    """One request for all `prompts`, each of them a conversation. The server puts the chat template around it.

    Raises SpecError for what the server would answer otherwise than it is meant."""
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return dumps(_settings(model, sampling) | {"messages": messages})


def _settings(model: str, sampling: Sampling) -> dict[str, Any]:
    if sampling.extra.get("n") not in (None, 1):
        raise SpecError(f"n={sampling.extra['n']!r}: of many prompts in one request, each has one answer.")
    settings = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "max_tokens": sampling.max_tokens,
    }
    body: dict[str, Any] = {"model": model}
    body |= {name: value for name, value in settings.items() if value is not None}
    return body | {name: value for name, value in sampling.extra.items() if name not in _OURS}
