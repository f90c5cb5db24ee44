"""Agents that work together on a board."""

import pytest
from tests.support.fake_pool import Asked, FakePool, failed, with_roles

from batch_agent.backends.endpoints.hostfile import Endpoint
from batch_agent.core.errors import BackendError, ErrorKind, SpecError
from batch_agent.pools.blackboard import Blackboard, BoardState, blackboard
from batch_agent.pools.response import Response

SECTIONS = ["ideas", "doubts"]


def shown(section: str, board: BoardState) -> str:
    return f"{section}: {sum(len(notes) for notes in board.values())}"


def numbered(asked: Asked) -> str:
    return f"{asked.agent} {asked.prompt}"


async def test_agents_add_to_the_section_of_their_role() -> None:
    pool = FakePool(with_roles("ideas", "doubts", "ideas"), numbered)
    board = await Blackboard(SECTIONS, shown).run(pool, max_rounds=1)
    assert board == {"ideas": ["0 ideas: 0", "2 ideas: 0"], "doubts": ["1 doubts: 2"]}


async def test_a_section_reads_what_those_before_it_wrote_in_the_same_round() -> None:
    pool = FakePool(with_roles("doubts", "ideas"), numbered)
    board = await Blackboard(SECTIONS, shown).run(pool, max_rounds=2)
    assert board == {"ideas": ["1 ideas: 0", "1 ideas: 2"], "doubts": ["0 doubts: 1", "0 doubts: 3"]}


async def test_there_are_as_many_rounds_as_are_allowed() -> None:
    board = Blackboard(SECTIONS, shown)
    await board.run(FakePool(with_roles("ideas"), numbered))
    assert board.round == 10
    assert len(board.board["ideas"]) == 10


async def test_a_run_ends_after_the_round_that_converges() -> None:
    board = Blackboard(SECTIONS, shown)
    pool = FakePool(with_roles("ideas", "doubts"), numbered)
    await board.run(pool, convergence_fn=lambda state: len(state["ideas"]) == 3)
    assert board.round == 3
    assert len(pool.asked) == 6


async def test_a_second_run_continues_from_the_board() -> None:
    board = Blackboard(SECTIONS, shown)
    board.board["doubts"].append("is it so?")
    pool = FakePool(with_roles("ideas"), numbered)
    await board.run(pool, max_rounds=1)
    await board.run(pool, max_rounds=1)
    assert board.board == {"ideas": ["0 ideas: 1", "0 ideas: 2"], "doubts": ["is it so?"]}
    assert board.round == 2


async def test_a_snapshot_does_not_change_any_more() -> None:
    board = Blackboard(SECTIONS, shown)
    pool = FakePool(with_roles("ideas"), numbered)
    await board.run(pool, max_rounds=1)
    snapshot = board.snapshot()
    await board.run(pool, max_rounds=1)
    assert snapshot == {"round": 1, "board": {"ideas": ["0 ideas: 0"], "doubts": []}}


async def test_roles_without_a_section_are_unused_and_sections_without_agents_stay_empty() -> None:
    endpoints = [*with_roles("ideas", "cook"), Endpoint("gpu2", tags=frozenset({"doubts"}))]
    pool = FakePool(endpoints, numbered)
    board = await Blackboard(SECTIONS, shown).run(pool, max_rounds=1)
    assert [asked.agent for asked in pool.asked] == [0]
    assert board["doubts"] == []


async def test_if_no_section_has_an_agent_sections_and_roles_are_named() -> None:
    pool = FakePool([*with_roles("idea", "cook"), Endpoint("gpu2")], numbered)
    with pytest.raises(SpecError, match=r"sections are \['ideas', 'doubts'\], the roles are \['cook', 'idea'\]"):
        await Blackboard(SECTIONS, shown).run(pool)


async def test_failed_responses_are_kept_apart_from_the_board() -> None:
    pool = FakePool(with_roles("ideas", "ideas", "doubts"), lambda asked: failed() if asked.agent == 1 else "note")
    board = Blackboard(SECTIONS, shown)
    await board.run(pool, max_rounds=2)
    assert board.board == {"ideas": ["note", "note"], "doubts": ["note", "note"]}
    assert [response.error for response in board.failures["ideas"]] == ["it broke", "it broke"]
    assert board.failures["doubts"] == []


async def test_a_round_without_any_answer_ends_the_run_and_leaves_the_board() -> None:
    def only_once(asked: Asked) -> str | Response:
        return "note" if asked.prompt == "ideas: 0" else failed("gone", ErrorKind.CONNECTION)

    board = Blackboard(SECTIONS, shown)
    pool = FakePool(with_roles("ideas", "doubts"), only_once)
    with pytest.raises(BackendError, match=r"Round 2 of the board: 2 of 2 have no answer: .*gpu0: gone") as error:
        await board.run(pool)
    assert error.value.kind is ErrorKind.CONNECTION
    assert board.round == 1
    assert board.board == {"ideas": ["note"], "doubts": []}


@pytest.mark.parametrize("sections", [[], ["a", "a"], "ideas"])
def test_sections_are_a_list_of_different_names(sections: list[str]) -> None:
    with pytest.raises(SpecError, match="sections must be a non-empty list of distinct names"):
        Blackboard(sections, shown)


async def test_invalid_arguments_are_rejected_before_anything_is_sent() -> None:
    pool = FakePool(with_roles("ideas"), numbered)
    with pytest.raises(SpecError, match="max_rounds must be >= 1; got 0"):
        await Blackboard(SECTIONS, shown).run(pool, max_rounds=0)
    with pytest.raises(SpecError, match="Blackboard: the pool has no endpoints"):
        await Blackboard(SECTIONS, shown).run(FakePool([]))
    assert pool.asked == []


async def test_a_board_can_be_run_in_one_call() -> None:
    pool = FakePool(with_roles("ideas"), numbered)
    board = await blackboard(pool, SECTIONS, shown, max_rounds=5, convergence_fn=lambda _: True)
    assert board == {"ideas": ["0 ideas: 0"], "doubts": []}
