"""Hints of clients: everything that a request may carry parses, and nothing raises."""

from typing import Any

import pytest
from batch_agent_vllm.hints import Hints, parse_hints
from hypothesis import given
from hypothesis import strategies as st

JSON = st.sampled_from([None, True, False, "", "a", "1", [], ["a"], {}, {"session": "a"}]) | st.integers() | st.floats()
FIELDS = ["session", "next_use_s", "drop", "once", "shared_tokens", "update", "probe"]


def test_the_fields_of_a_hint_are_read() -> None:
    fields = {"session": "a", "next_use_s": 4, "drop": True, "once": True, "shared_tokens": 64, "update": True}
    assert parse_hints({"batch_agent": fields}) == Hints("a", 4.0, True, True, 64, True)


@pytest.mark.parametrize("params", [None, {}, {"batch_agent": None}, {"batch_agent": []}, "batch_agent", 3])
def test_a_request_without_hints_has_empty_hints(params: Any) -> None:
    assert parse_hints(params) == Hints()


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_malformed_fields_count_as_absent(fields: dict[str, Any]) -> None:
    hints = parse_hints({"batch_agent": fields})
    assert hints.session is None or hints.session
    assert hints.next_use_s is None or 0 <= hints.next_use_s < float("inf")
    assert hints.shared_tokens >= 0


def test_a_number_too_large_for_a_float_counts_as_unknown() -> None:
    assert parse_hints({"batch_agent": {"next_use_s": 10**400}}).next_use_s is None
