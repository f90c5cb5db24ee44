"""The benchmark of the schedule, on a workload of moments."""

import asyncio

import pytest
from benchmarks.scheduling import (
    Diary,
    Rounds,
    Sizes,
    Work,
    agents_on_memory,
    batch_agent,
    gather,
    later_turns_cached,
    requests_on_slots,
    targets,
)

from batch_agent.sim import SimConfig, SimServer

WORK = Work(4, 3, document_tokens=400, answer_tokens=(40, 48), result_tokens=32, tool_s=(0.0, 0.01))
SHORT = Work(6, 1, document_tokens=50, answer_tokens=(4, 8))


class UsageDiary(Diary):
    """Keeps the usage of every request."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.requests: list[tuple[int, int]] = []

    def used(self, input_tokens: int, cached_tokens: int) -> None:
        super().used(input_tokens, cached_tokens)
        self.requests.append((input_tokens, cached_tokens))


def gathered(work: Work) -> UsageDiary:
    diary = UsageDiary(work)
    with SimServer(SimConfig(zero_latency=True)) as sim:
        asyncio.run(gather(f"127.0.0.1:{sim.port}", work, diary))
    return diary


@pytest.mark.slow
def test_both_schedulers_make_the_same_requests_and_wait_once_for_each() -> None:
    ours, theirs = Diary(WORK), gathered(WORK)
    with SimServer(SimConfig(zero_latency=True)) as sim:
        asyncio.run(batch_agent(f"127.0.0.1:{sim.port}", WORK, ours))
    assert ours.input_tokens == theirs.input_tokens
    assert [len(waits) for waits in ours.waits] == [len(waits) for waits in theirs.waits] == [3] * 4


def test_the_cached_share_of_later_turns_is_what_their_requests_report() -> None:
    diary, sizes = gathered(WORK), Sizes.of(WORK)
    later = sorted(diary.requests)[WORK.agents :]  # prompts only grow, so the first turns are the shortest
    share = sum(cached for _, cached in later) / sum(prompt for prompt, _ in later)
    assert later_turns_cached(diary, WORK, sizes, 16) == pytest.approx(share)


def test_the_working_set_is_the_final_context_of_all_agents() -> None:
    diary, sizes = gathered(WORK), Sizes.of(WORK)
    prompts = sorted(prompt for prompt, _ in diary.requests)
    assert sizes.first_prompts == sum(prompts[: WORK.agents])
    last_answers = sum(WORK.answer_size(agent, WORK.turns - 1) for agent in range(WORK.agents))
    ends = sum(prompts[-WORK.agents :]) + last_answers - WORK.agents * sizes.shared
    assert sizes.own == pytest.approx(ends, rel=0.02)


@pytest.mark.slow
def test_one_round_of_every_workload_family_gives_numbers_and_targets() -> None:
    rounds = Rounds()
    agents_on_memory(rounds, "crowd 1.2", WORK, 1.2, speed=1000)
    requests_on_slots(rounds, SHORT, slots=2)
    assert rounds.taken["crowd 1.2"].keys() == {"dispatch_all", "ours", "capped_by_hand"}
    assert rounds.taken["short"].keys() == {"no_limit", "semaphore_2", "ours"}
    assert {each["case"] for each in targets(rounds)} == {"crowd 1.2", "short"}
    assert all(numbers["wall_s"] > 0 for numbers in rounds.medians()["short"].values())
