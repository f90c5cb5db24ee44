"""Hints that a client sends: all that a request may carry is read, and nothing raises."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent_vllm import __version__
from batch_agent_vllm.hints import Hints, parse_hints

JSON = st.sampled_from([None, True, False, "", "a", "1", [], ["a"], {}, {"session": "a"}]) | st.integers() | st.floats()
FIELDS = ["session", "next_use_s", "drop", "once", "shared_tokens", "update", "probe"]


def test_all_fields_are_read() -> None:
    given = {"session": "a", "next_use_s": 2, "drop": True, "once": True, "shared_tokens": 64, "update": True}
    read = Hints("a", 2.0, drop=True, once=True, shared_tokens=64, update=True, probe=True)
    assert parse_hints({"batch_agent": {**given, "probe": True}}) == read


@pytest.mark.parametrize(
    "params",
    [
        None,
        3,
        "batch_agent",
        {},
        {"batch_agent": None},
        {"batch_agent": "a"},
        {"batch_agent": {"session": 3, "next_use_s": "soon", "drop": "yes", "once": 1, "shared_tokens": True}},
        {"batch_agent": {"session": "", "next_use_s": float("nan"), "shared_tokens": -1}},
        {"batch_agent": {"next_use_s": -1.0}},
        {"batch_agent": {"next_use_s": 10**400}},
    ],
)
def test_what_is_absent_or_of_the_wrong_type_is_no_hint(params: Any) -> None:
    assert parse_hints(params) == Hints()


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_hints_are_of_their_types_whatever_was_sent(fields: dict[str, Any]) -> None:
    hints = parse_hints({"batch_agent": fields})
    assert hints.session is None or hints.session
    assert hints.next_use_s is None or 0 <= hints.next_use_s < float("inf")
    assert hints.shared_tokens >= 0


def test_the_version_that_clients_see_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
