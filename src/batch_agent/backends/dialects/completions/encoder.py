"""Encoder of requests with many prompts: OpenAI completions with a list of prompts, and vLLM's batch of
conversations."""

from collections.abc import Sequence
from typing import Any

from ....core.errors import SpecError
from ....core.json import dumps
from ....core.requests import Sampling

PATH = "/completions"
CHATS_PATH = "/chat/completions/batch"
"""Supported by vLLM only, without streaming and tools."""
_RESERVED = ("model", "prompt", "messages", "stream", "stream_options")
"""Fields that users cannot set. With `stream`, the batch of conversations returns only the last token of each reply."""


def encode(
    prompts: Sequence[str], model: str, sampling: Sampling, *, only_standard: bool = False, is_raw: bool = False
) -> bytes:
    """One streaming request for all `prompts`, which contain their chat template already. `is_raw`: the prompts have no
    template, and the server adds its special tokens.

    `only_standard` omits vLLM's extensions; such a server may add a special token to each prompt, and does not report
    the usage of each prompt. Raises SpecError for options that a server would reject or misinterpret."""
    if sampling.max_tokens is None:
        raise SpecError("max_tokens is required: without it, completions stop after 16 tokens.")
    if empty := [index for index, prompt in enumerate(prompts) if not prompt]:
        raise SpecError(f"Prompt {empty[0]} is empty: the server would reject the whole request.")
    body = _settings(model, sampling)
    streaming: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    if not only_standard:
        body["add_special_tokens"] = is_raw  # otherwise they are part of the template
        streaming["stream_options"]["continuous_usage_stats"] = True
    return dumps(body | streaming | {"prompt": list(prompts)})


def encode_chats(prompts: Sequence[str], model: str, sampling: Sampling) -> bytes:
    """One request for all `prompts`, each as a conversation to which the server applies its chat template. Raises
    SpecError for options that the server would misinterpret."""
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return dumps(_settings(model, sampling) | {"messages": messages})


def _settings(model: str, sampling: Sampling) -> dict[str, Any]:
    if sampling.extra.get("n") not in (None, 1):
        raise SpecError(
            f"n={sampling.extra['n']!r} is not supported: in a request with many prompts, each has one reply."
        )
    settings = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "max_tokens": sampling.max_tokens,
    }
    body: dict[str, Any] = {"model": model}
    body |= {name: value for name, value in settings.items() if value is not None}
    return body | {name: value for name, value in sampling.extra.items() if name not in _RESERVED}
