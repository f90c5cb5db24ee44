"""Limits of JSON in responses."""

import orjson
import pytest

from batch_agent.backends.http.json_body import BadJson, loads
from batch_agent.core.validation import MAX_NESTING


def nested(levels: int, inside: str = "1") -> bytes:
    return f"{'[' * levels}{inside}{']' * levels}".encode()


@pytest.mark.parametrize("inside", ["1", '"]]]]"', '"[[[["', str(2**70)])
def test_a_response_may_have_so_many_levels_and_no_more(inside: str) -> None:
    assert loads(nested(MAX_NESTING, inside))
    with pytest.raises(BadJson, match="nested more than 200 levels deep"):
        loads(nested(MAX_NESTING + 1, inside))


def test_many_values_beside_each_other_are_no_levels() -> None:
    entry = {"token": "[{", "logprob": -0.1, "bytes": [91], "top_logprobs": []}
    reply = {"choices": [{"logprobs": {"content": [entry] * 1_000}}]}
    assert loads(orjson.dumps(reply)) == reply
