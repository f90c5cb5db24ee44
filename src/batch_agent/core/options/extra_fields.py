"""Check of `extra`: fields of a request that the run itself sets, or whose results would be paid for and dropped."""

import json
from collections.abc import Mapping
from typing import Any

from ..errors import SpecError

_COPIES = frozenset({"n", "best_of", "candidate_count", "num_return_sequences"})
"""Number of answers to one request. Of several, all are billed and one is read."""
_INSTEAD = {
    "model": "pass model=",
    "modelId": "pass model=",
    "messages": "the conversation comes from task= and inputs=",
    "prompt": "the conversation comes from task= and inputs=",
    "input": "the conversation comes from task= and inputs=",
    "system": "pass system_prompt=",
    "tools": "pass tools=",
    "functions": "pass tools=",
    "toolConfig": "pass tools=",
    "tool_choice": "the model chooses until its last turn",
    "function_call": "the model chooses until its last turn",
    "temperature": "pass temperature=",
    "top_p": "pass top_p=",
    "seed": "pass seed=",
    "stop": "pass stop=",
    "stop_sequences": "pass stop=",
    "max_tokens": "pass max_tokens=",
    "max_completion_tokens": "pass max_tokens=",
    "max_new_tokens": "pass max_tokens=",
    "inferenceConfig": "pass max_tokens=, temperature=, top_p= or stop=",
    "stream": "pass streaming=True",
    "stream_options": "pass streaming=True",
    "priority": "pass priority=",
    "cache_salt": "pass cache_salt=",
    "request_id": "it is made from the key of the agent",
    "modalities": "answers are text, and any others would be paid for and dropped",
    "audio": "answers are text, and any others would be paid for and dropped",
}
"""What to do instead, by field. The names are those of all dialects: a run may move from one to another."""
_TIER_FIELDS = frozenset({"service_tier", "serviceTier"})
_FLEX = ("flex", {"type": "flex"})
_SCHEMA_FIELDS = frozenset({"response_format", "output_format"})


def check_extra(extra: Any, *, has_schema: bool = False, has_lane: bool = False) -> None:
    """Raises SpecError for a field that is not the caller's, and for what JSON cannot hold. `has_schema`: the answers
    have a schema, which the run puts into the request. `has_lane`: it also puts the service tier there."""
    if not isinstance(extra, Mapping) or not all(isinstance(name, str) for name in extra):
        raise SpecError(f"extra must be a dict of request fields; got {extra!r}.")
    for name, value in extra.items():
        if name in _COPIES and value not in (None, 1):
            raise SpecError(
                f"extra must not hold {name}={value!r}: an agent has one answer, so the others would be paid for and "
                "dropped. For several answers to an input, repeat the input: inputs=[text] * 3."
            )
        if name in _INSTEAD:
            raise SpecError(f"extra must not hold {name!r}, which the run sets itself: {_INSTEAD[name]}.")
        if name in _TIER_FIELDS and (has_lane or value in _FLEX):
            raise SpecError(f"extra must not hold {name!r}, which lane= sets: pass lane='flex' for flex requests.")
        if name in _SCHEMA_FIELDS and has_schema:
            raise SpecError(f"extra must not hold {name!r}, which output_schema= sets: keep one of them.")
    try:
        json.dumps(dict(extra), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(f"extra must be JSON serializable: {error}.") from None
