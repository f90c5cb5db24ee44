"""Prompts of a request body, as tokens."""

import struct
from typing import Any

from .request_errors import RequestError, invalid
from .sim_config import SimConfig
from .tokens import encode, from_ids, render_chat

UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, struct.error)


def chat_prompt(body: dict[str, Any]) -> bytes:
    """The prompt of a conversation. Raises RequestError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list with at least one message", param="messages")
    try:
        return render_chat(messages, body.get("tools"), opens_answer=bool(body.get("add_generation_prompt", True)))
    except UNREADABLE as error:
        raise RequestError(f"a message cannot be read: {error!r}", param="messages") from error


def text_prompts(prompt: Any, config: SimConfig) -> list[bytes]:
    """The prompts of a completion: a string, a list of token ids, or a list of either.

    Raises RequestError. A prompt in a list may still be empty.
    """
    if prompt is None or prompt == "":
        raise RequestError("Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    if prompt == []:
        raise RequestError("You must pass at least one prompt")
    many = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    _check_list(many, config)
    try:
        return [encode(one) if isinstance(one, str) else from_ids(one) for one in many]
    except UNREADABLE as error:
        raise invalid(f"the prompt is neither a string nor a list of token ids: {error!r}", "prompt") from error


def _check_list(many: list[Any], config: SimConfig) -> None:
    if len(many) == 1:
        return
    if not config.list_prompts:
        raise invalid(f"prompt must be one string or one list of token ids, got a list of {len(many)}", "prompt")
    if len(many) > config.max_list_prompts:
        raise RequestError(
            f"prompt list length {len(many)} exceeds the maximum allowed count of {config.max_list_prompts}. To "
            "increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable.",
            param="prompt",
        )
    if len({isinstance(one, str) for one in many}) > 1:
        raise invalid("a list of prompts must contain strings or lists of token ids, not both", "prompt")
