"""What a server computes with results behind their calls and with results placed first."""

from random import Random

import pytest

from batch_agent.core.run_reports import SharedResults
from batch_agent.schedule.reference_model import (
    MAX_READERS,
    Read,
    Reader,
    ReadRecorder,
    ReadTurn,
    ReferencedPrompt,
    ReferenceModel,
    model_of,
)


def reader(*documents: str, own: float = 100.0, size: float = 2_000.0, placement: str = "auto") -> Reader:
    """An agent that reads a document per turn, with replies of 10."""
    reads = [Read(each, size, placement) for each in documents]  # type: ignore[arg-type]
    return Reader(own, tuple(ReadTurn(10.0, reads=(each,)) for each in reads))


def recorded(agents: list[Reader], shared: float = 0.0) -> ReadRecorder:
    recorder = ReadRecorder(shared)
    for agent in agents:
        recorder.add(agent)
    return recorder


def test_behind_their_calls_all_results_are_computed_for_each_agent() -> None:
    model = model_of([reader("a", "b"), reader("a", "b")], shared=500.0)
    assert model.inline == 500 + 2 * (100 + 2 * 2_000)


def test_placed_first_a_result_is_computed_once_and_what_stands_behind_it_again() -> None:
    model = model_of([reader("a", placement="first"), reader("a", placement="first")])
    own, moved = 100, 100 + 10
    assert model.first == 2 * own + 2_000 + 2 * moved
    assert model.placed == 2


def test_a_second_result_moves_all_replies_again_but_not_the_reference_before_it() -> None:
    model = model_of([reader("a", "b", placement="first")])
    assert model.first == 100 + (2_000 + 110) + (2_000 + 120)


def test_results_are_shared_only_behind_the_same_references() -> None:
    one_order = model_of([reader("a", "b", placement="first"), reader("a", "b", placement="first")])
    assert one_order.first == 2 * (100 + 110 + 120) + 2 * 2_000
    other_beginning = model_of([reader("a", "b", placement="first"), reader("b", placement="first")])
    assert other_beginning.first == (100 + 110 + 120) + (100 + 110) + 3 * 2_000


def test_the_model_places_what_several_agents_read_if_more_is_saved_than_computed_again() -> None:
    agents = [reader("a") for _ in range(10)]
    model = model_of(agents)
    assert model.readers == {"a": 10}
    assert model.placed == 10
    one_by_one = ReferenceModel()
    for agent in agents:
        one_by_one.add([agent])
    assert one_by_one.placed == 9, "nobody else had asked when the first agent did"
    assert model_of([reader("a", own=6_000.0) for _ in range(10)]).placed == 0
    assert model_of([reader(str(number)) for number in range(10)]).placed == 0


def test_a_result_that_is_among_the_references_costs_nothing_when_it_is_read_again() -> None:
    model = ReferenceModel()
    prompt = ReferencedPrompt(model, 100.0)
    prompt.extend(ReadTurn(10.0, reads=(Read("a", 2_000.0, "first"),)))
    path = prompt.path
    prompt.extend(ReadTurn(10.0, reads=(Read("a", 2_000.0, "first"),)))
    assert (prompt.path, prompt.inline, prompt.placed) == (path, 100.0, 2)


def test_references_stand_in_the_order_in_which_agents_first_read_them() -> None:
    model = ReferenceModel()
    model.add([reader("a", "b", placement="first")])
    prompt = ReferencedPrompt(model, 100.0)
    for heading in "ba":
        prompt.extend(ReadTurn(10.0, reads=(Read(heading, 2_000.0, "first"),)))
    assert [each.heading for each in prompt.path] == ["a", "b"]


def test_a_recorded_rank_decides_the_order() -> None:
    prompt = ReferencedPrompt(ReferenceModel(), 100.0)
    prompt.extend(ReadTurn(10.0, reads=(Read("a", 1.0, "first", 7), Read("b", 1.0, "first", 3))))
    assert [each.heading for each in prompt.path] == ["b", "a"]


@pytest.mark.parametrize(("reads", "computed"), [("topics", 350_000), ("zipf", 620_000)])
def test_the_model_computes_as_much_as_was_measured(reads: str, computed: int) -> None:
    """128 agents of 400 own tokens behind 2,000 shared ones read three of 20 documents of 2,000 tokens, on vLLM."""

    def documents(agent: int) -> list[int]:
        if reads == "topics":
            return Random(f"topic {agent % 16}").sample(range(20), 3)
        random, left, found = Random(f"reader {agent}"), list(range(20)), list[int]()
        for _ in range(3):
            found.append(random.choices(left, [1 / (1 + each) for each in left])[0])
            left.remove(found[-1])
        return found

    agents = [reader(*map(str, documents(agent)), own=400.0, placement="first") for agent in range(128)]
    model = model_of(agents, 2_000.0)
    assert model.inline == pytest.approx(830_000, rel=0.02)
    assert model.first == pytest.approx(computed, rel=0.12)


def test_a_run_that_placed_nothing_is_told_what_it_would_gain() -> None:
    agents = [reader("a", "b", size=8_000.0) for _ in range(8)]
    report = recorded(agents).report(4.0)
    assert report is not None
    assert (report.references, report.agents, report.placed) == (2, 8, 0)
    model = model_of(agents)
    assert report.saved_tokens == round((model.inline - model.first) / 4)
    assert 0.5 < report.saved_share == model.saved_share < 0.9


@pytest.mark.parametrize(
    "agents",
    [
        [],
        [reader("a", "a", "a")],
        [reader(str(number)) for number in range(20)],
        [reader("a", own=50_000.0) for _ in range(20)],
        [reader("a", size=50.0) for _ in range(20)],
    ],
    ids=["no agents", "one agent", "each its own", "long tasks", "short results"],
)
def test_nothing_is_said_where_little_can_be_gained(agents: list[Reader]) -> None:
    assert recorded(agents).report(4.0) is None


def test_a_run_that_placed_results_first_is_told_what_it_saved() -> None:
    agents = [reader("a", "b", size=8_000.0, placement="first") for _ in range(8)]
    report = recorded([*agents, reader("c", placement="inline")]).report(4.0, 1_234)
    assert report is not None
    assert (report.references, report.agents, report.placed, report.stored_once) == (2, 8, 16, 1_234)
    assert report.saved_tokens > 0


def test_a_run_that_considered_results_and_placed_none_is_told_so() -> None:
    assert recorded([reader("a", placement="inline")] * 2).report(4.0, 0) == SharedResults(0, 0, 0, 0, 0.0, 0)


def test_results_placed_first_that_nobody_shares_cost_more() -> None:
    report = recorded([reader(str(number), placement="first") for number in range(4)]).report(4.0)
    assert report is not None
    assert report.saved_tokens < 0


@pytest.mark.slow
def test_of_a_large_run_only_the_first_agents_are_looked_at() -> None:
    recorder = recorded([reader("a", "b", size=8_000.0)] * MAX_READERS)
    small = recorder.report(4.0)
    assert not recorder.is_open
    for _ in range(MAX_READERS):
        recorder.add(None)
    large = recorder.report(4.0)
    assert small is not None
    assert large is not None
    assert large.saved_tokens == pytest.approx(2 * small.saved_tokens, abs=2)
    assert large.saved_share == small.saved_share
    assert large.agents == 2 * small.agents
