"""What every store keeps to. Reopened, memory is the same store, and SQLite another one on the same folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from batch_agent.core.errors import ErrorKind
from batch_agent.core.facts import Fact, Failed, Replied, Returned, failure_of
from batch_agent.core.messages import Thought, ToolCall, ToolResult
from batch_agent.core.protocols.store import KeepsSubmissions, Store, Submission, SubmittedLine
from batch_agent.core.requests import Reply, Usage
from batch_agent.core.results import AgentError
from batch_agent.store.memory_store import MemoryStore, NoStore
from batch_agent.store.sqlite import SqliteStore

Reopen = Callable[[], Store]

CALL = ToolCall("call_1", "look", '{"q": "ä\\u0000\U0001f600"}')
THOUGHTS = (Thought("Let me see.", "signed"), Thought(redacted="x"))
ASKED = Replied(Reply("", "calls", Usage(120, 64, 7), (CALL,), THOUGHTS), 0.25, 1.5, 0.1, 2)
RETURNED = Returned((ToolResult(CALL, "line\n\0 ünïcode", True, 0.5),), 0.75)
ANSWERED = Replied(Reply("42", "stop", Usage(150, 120, 3)))
FAILED = Failed(AgentError(ErrorKind.SERVER, "down: ä\0\U0001f600", retryable=True), 1.25)
STORY: tuple[Fact, ...] = (ASKED, RETURNED, ANSWERED)


@pytest.fixture(params=["memory", "sqlite"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    """Opens the store under test, once more each time."""
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "run")
    memory = MemoryStore()
    return lambda: memory


@pytest.fixture(params=["none", "memory", "sqlite"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    stores: dict[str, Callable[[], Store]] = {
        "none": NoStore,
        "memory": MemoryStore,
        "sqlite": lambda: SqliteStore(tmp_path),
    }
    return stores[request.param]()


async def test_an_unknown_agent_has_no_facts(any_store: Store) -> None:
    await any_store.open()
    assert list(await any_store.facts("nobody")) == []
    await any_store.aclose()


async def test_all_facts_of_an_agent_can_be_recorded_and_the_agent_finished(any_store: Store) -> None:
    await any_store.open()
    for fact in STORY:
        any_store.record("a", fact)
    await any_store.settle()
    any_store.restart("a", [])
    await any_store.settle()
    await any_store.aclose()


async def test_closing_a_store_twice_or_without_opening_it_is_harmless(any_store: Store) -> None:
    await any_store.aclose()
    await any_store.aclose()


async def test_facts_come_back_in_order_and_equal(reopen: Reopen) -> None:
    store = reopen()
    await store.open()
    for fact in STORY:
        store.record("a", fact)
    assert tuple(await store.facts("a")) == STORY
    await store.aclose()


async def test_the_facts_of_agents_are_kept_apart(reopen: Reopen) -> None:
    store = reopen()
    await store.open()
    for fact in STORY:
        store.record("a", fact)
        store.record("b", fact)
    store.record("b", ANSWERED)
    assert tuple(await store.facts("a")) == STORY
    assert tuple(await store.facts("b")) == (*STORY, ANSWERED)
    await store.aclose()


async def test_finished_agents_are_there_when_the_store_is_reopened(reopen: Reopen) -> None:
    store = reopen()
    await store.open()
    for fact in STORY:
        store.record("a", fact)
    await store.settle()
    await store.aclose()
    again = reopen()
    await again.open()
    assert tuple(await again.facts("a")) == STORY
    await again.aclose()


async def test_recorded_facts_are_there_after_the_store_is_closed(reopen: Reopen) -> None:
    store = reopen()
    await store.open()
    store.record("a", ASKED)
    await store.aclose()
    again = reopen()
    await again.open()
    assert tuple(await again.facts("a")) == (ASKED,)
    await again.aclose()


async def test_a_restarted_agent_has_no_earlier_facts(reopen: Reopen) -> None:
    store = reopen()
    await store.open()
    for fact in STORY:
        store.record("a", fact)
        store.record("b", fact)
    store.restart("a", [])
    assert list(await store.facts("a")) == []
    store.record("a", ANSWERED)
    assert tuple(await store.facts("a")) == (ANSWERED,)
    assert tuple(await store.facts("b")) == STORY
    await store.aclose()


async def test_facts_are_appended_to_an_agent_after_reopening(reopen: Reopen) -> None:
    for fact in STORY:
        store = reopen()
        await store.open()
        store.record("a", fact)
        await store.settle()
        await store.aclose()
    store = reopen()
    await store.open()
    assert tuple(await store.facts("a")) == STORY
    await store.aclose()


async def test_a_failure_is_there_again_and_is_superseded_by_what_follows(reopen: Reopen) -> None:
    store = reopen()
    await store.open()
    store.record("a", ASKED)
    store.record("a", FAILED)
    await store.settle("a")
    await store.aclose()
    again = reopen()
    await again.open()
    assert tuple(await again.facts("a")) == (ASKED, FAILED)
    assert failure_of(await again.facts("a")) == FAILED
    again.record("a", RETURNED)
    assert tuple(await again.facts("a")) == (ASKED, FAILED, RETURNED)
    assert failure_of(await again.facts("a")) is None
    await again.aclose()


async def test_inputs_and_rejections_are_no_facts(reopen: Reopen) -> None:
    store = reopen()
    await store.open()
    store.save_run([{"it": "a"}, {"it": "b"}], (1.0, 0.5, 2.0))
    store.reject(1, {"it": "b"}, FAILED.error)
    await store.settle()
    await store.aclose()
    again = reopen()
    await again.open()
    assert await again.plan() is None
    assert list(await again.facts("a")) == []
    await again.aclose()


async def test_values_without_a_json_form_do_not_break_the_store(any_store: Store) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    circle: list[object] = []
    circle.append(circle)
    await any_store.open()
    any_store.save_run([Broken(), circle, "\ud800", 10**30, {1: b"\xff"}], None)
    any_store.reject(0, circle, FAILED.error)
    any_store.record("a", ANSWERED)
    await any_store.settle("a")
    await any_store.aclose()


LINES = (SubmittedLine("k2", 12, 3, 0.5), SubmittedLine("k1"), SubmittedLine("k3", 1, 1, 0.0))


async def test_a_submission_is_read_again_with_what_has_become_known_of_it(reopen: Reopen) -> None:
    store = reopen()
    await store.open()
    assert isinstance(store, KeepsSubmissions)
    intended = Submission("w1", 12.5, LINES)
    await store.save_submission(intended)
    await store.save_submission(Submission("w2", 13.5, LINES[:1]))
    await store.aclose()
    store = reopen()
    await store.open()
    assert isinstance(store, KeepsSubmissions)
    assert list(await store.submissions()) == [intended, Submission("w2", 13.5, LINES[:1])]
    created = Submission("w1", 12.5, LINES, "file", "batch", has_ended=True)
    await store.save_submission(created)
    assert list(await store.submissions()) == [created, Submission("w2", 13.5, LINES[:1])]
    await store.aclose()


async def test_lines_that_agents_have_received_are_not_read_again(reopen: Reopen) -> None:
    store = reopen()
    await store.open()
    assert isinstance(store, KeepsSubmissions)
    await store.save_submission(Submission("w1", 12.5, LINES))
    store.take_lines("w1", ["k2", "k3", "unknown"])
    assert [each.lines for each in await store.submissions()] == [LINES[1:2]]
    store.take_lines("w1", ["k1"])
    assert list(await store.submissions()) == []
    await store.aclose()


async def test_a_submission_is_recorded_after_the_facts_before_it(tmp_path: Path) -> None:
    """A later process rebuilds the same requests only from facts that are as durable as the submission."""
    store, other = SqliteStore(tmp_path / "run"), SqliteStore(tmp_path / "copy")
    await store.open()
    store.record("a", ASKED)
    await store.save_submission(Submission("w1", 12.5, LINES))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # as a process that is killed now leaves it
    await store.aclose()
    await other.open()
    assert list(await other.facts("a")) == [ASKED]
    assert len(await other.submissions()) == 1
    await other.aclose()
