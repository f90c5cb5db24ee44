"""What an agent that reduces is shown of an item."""

import json
from typing import Any

from pydantic import BaseModel

from batch_agent import ErrorKind
from batch_agent.core.results import AgentError
from batch_agent.flows.reduce_step import entry_of, error_entries
from batch_agent.flows.result import Item

FAILED = AgentError(ErrorKind.MAX_TURNS, "no answer in 10 turns")


class Section(BaseModel):
    title: str
    body: str = ""


def test_an_answer_is_shown_whole_and_an_input_as_far_as_it_is_short() -> None:
    item = Item((4,), {"path": "a.py", "text": "x" * 5000, "none": None, "review": "y" * 5000})
    assert entry_of(item, ["review"]) == {
        "status": "ok",
        "index": 4,
        "input": {"path": "a.py"},
        "output": "y" * 5000,
    }


def test_several_answers_have_their_names() -> None:
    item = Item((0,), {"review": "good", "judge": False})
    assert entry_of(item, ["review", "judge"]) == {
        "status": "ok",
        "index": 0,
        "output": {"review": "good", "judge": False},
    }


def test_without_any_answer_the_input_is_shown_whole() -> None:
    item = Item((0,), {"text": "x" * 5000, "none": None})
    assert entry_of(item, []) == {"status": "ok", "index": 0, "input": {"text": "x" * 5000, "none": None}}


def test_what_many_items_have_in_common_is_not_repeated_in_each() -> None:
    item = Item((0, 3), {"plan": ["a", "b"], "item": Section(title="b"), "index": 3, "map": "done"})
    assert entry_of(item, ["map"], ["plan"]) == {
        "status": "ok",
        "index": "0.3",
        "input": {"item": Section(title="b"), "index": 3},
        "output": "done",
    }


def test_a_failure_is_shown_with_what_it_had_come_to() -> None:
    item = Item((1,), {"path": "b", "review": "good"}).failed("judge", FAILED)
    assert entry_of(item, ["review", "judge"]) == {
        "status": "error",
        "index": 1,
        "input": {"path": "b"},
        "output": {"review": "good"},
        "error": {"kind": "max_turns", "message": "no answer in 10 turns"},
    }


def test_an_error_of_many_words_is_cut() -> None:
    item = Item((1,), {}).failed("judge", AgentError(ErrorKind.SERVER, "w" * 100_000))
    message: str = entry_of(item, [])["error"]["message"]
    assert message == "w" * 1000 + " ..."


def test_excuses_say_less_and_less() -> None:
    item = Item((1,), {"path": "b", "text": "x" * 5000, "review": "y" * 5000})
    full, bare = (json.loads(text) for text in error_entries(item, FAILED, ["review"]))
    error = {"kind": "max_turns", "message": "no answer in 10 turns"}
    assert full == {"status": "error", "index": 1, "error": error, "input": {"path": "b"}}
    assert bare == {"status": "error", "index": 1, "error": error}


def test_there_is_an_excuse_for_what_cannot_even_be_looked_at() -> None:
    class Sealed:
        def __str__(self) -> str:
            raise RuntimeError("sealed")

    endless: list[Any] = []
    endless.append(endless)
    for thing in (Sealed(), endless):
        [bare] = error_entries(Item((1,), {"thing": thing}), FAILED, [])
        assert json.loads(bare)["error"]["kind"] == "max_turns"
