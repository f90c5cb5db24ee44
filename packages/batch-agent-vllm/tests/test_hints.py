"""Hints that a client sends."""

import pytest

from batch_agent_vllm.hints import Hints, parse_hints


def test_all_fields_are_read() -> None:
    given = {"session": "a", "next_use_s": 2, "drop": True, "once": True, "shared_tokens": 64}
    assert parse_hints({"batch_agent": given}) == Hints("a", 2.0, drop=True, once=True, shared_tokens=64)


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"batch_agent": "a"},
        {"batch_agent": {"session": 3, "next_use_s": "soon", "drop": "yes", "once": 1, "shared_tokens": True}},
        {"batch_agent": {"session": "", "next_use_s": float("nan"), "shared_tokens": -1}},
        {"batch_agent": {"next_use_s": -1.0}},
    ],
)
def test_what_is_absent_or_of_the_wrong_type_is_no_hint(params: dict[str, object] | None) -> None:
    assert parse_hints(params) == Hints()
