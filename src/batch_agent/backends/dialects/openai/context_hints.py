"""Wire format of hints for vLLM servers with the plugin batch-agent-vllm.

Hints are fields of ordinary requests. Without a request of the agent at hand, they go with a completion of one token:
the plugin reads them as soon as the request arrives, before it is scheduled.
"""

from typing import Any

from ....core.json import dumps
from ....core.requests import ContextHint

PARAMETERS = "kv_transfer_params"
PLUGIN = "batch_agent"
COMPLETIONS_PATH = "/completions"
_ANY_PROMPT = [0]


def hint_fields(hint: ContextHint, turn: int) -> dict[str, Any]:
    """`turn`: of the request that carries the hint, from 0."""
    fields: dict[str, Any] = {"session": hint.agent}
    if hint.next_use is not None:
        fields["next_use_s"] = round(hint.next_use, 3)
    if hint.is_last:
        fields["drop"] = True
        if turn == 0:
            fields["once"] = True
    if hint.shared_tokens:
        fields["shared_tokens"] = hint.shared_tokens
    return {PLUGIN: fields}


def hint_request(model: str, hint: ContextHint) -> bytes:
    """Body of a request that only carries the hint."""
    fields = {**hint_fields(hint, turn=1)[PLUGIN], "update": True}
    return dumps({"model": model, "prompt": _ANY_PROMPT, "max_tokens": 1, PARAMETERS: {PLUGIN: fields}})


def capability_request() -> bytes:
    """Body of a request whose response has the capabilities of the plugin."""
    return dumps({"prompt": _ANY_PROMPT, "max_tokens": 1, PARAMETERS: {PLUGIN: {"probe": True}}})
