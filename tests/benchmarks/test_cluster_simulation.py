"""The simulation of a distributed run, where arithmetic says what must come out."""

from dataclasses import replace

import pytest
from benchmarks.cluster.simulation import Cluster, Costs, Outcome, Queue, Simulation, Work

FREE = Costs(
    command_s=0,
    redis_agent_s=0.0,
    agent_commands=3,
    message_commands=8,
    claim_commands=4,
    presence_commands=25,
    client_s=0,
    caller_s=0,
)
TIMER = Work(turns=1, at_once=10, alone_s=1.0, full_s=1.0, full=10, spread=0.0)


def steady(cluster: Cluster, work: Work = TIMER, **costs: float) -> Outcome:
    return Simulation(cluster, work, replace(FREE, **costs)).steady(5.0, 20.0)


def test_a_queue_serves_one_at_a_time() -> None:
    queue = Queue()
    assert [queue.serve(now, 2.0) for now in (0.0, 1.0, 10.0)] == [2.0, 4.0, 12.0]
    assert queue.busy_s == 6.0


def test_workers_with_nothing_to_wait_for_are_as_fast_as_their_engines() -> None:
    found = steady(Cluster(workers=5))
    assert found.agents_per_s == pytest.approx(50, rel=0.02)  # the next begins before the end of an agent is stored
    assert found.redis == found.caller == found.client == 0


@pytest.mark.parametrize(
    ("costs", "most"),
    [
        ({"caller_s": 0.05}, 20),
        ({"client_s": 0.5}, 10),
        ({"command_s": 0.01, "presence_commands": 0.0}, 100 / 3),  # three commands for each agent, at the least
    ],
)
def test_the_slowest_part_decides(costs: dict[str, float], most: float) -> None:
    assert steady(Cluster(workers=5), TIMER, **costs).agents_per_s <= most * 1.01


def test_a_caller_that_is_always_busy_is_the_limit() -> None:
    found = steady(Cluster(workers=5), caller_s=0.05)
    assert found.agents_per_s == pytest.approx(20, rel=0.05)
    assert found.caller == pytest.approx(1, abs=0.02)


def test_the_window_of_the_caller_bounds_the_agents_under_way() -> None:
    found = steady(Cluster(workers=5, outstanding=20))
    assert found.agents_per_s <= 20
    assert found.waiting >= 0.5


def test_agents_of_a_busier_worker_share_messages() -> None:
    few, many = (steady(Cluster(workers=1), replace(TIMER, at_once=count)) for count in (2, 200))
    assert many.commands_per_agent < few.commands_per_agent / 3


def test_every_agent_ends_once() -> None:
    found = Simulation(Cluster(workers=3), TIMER, FREE, agents=95).run()
    assert found.agents_per_s * found.wall_s == pytest.approx(95)


def test_the_same_seed_gives_the_same_run() -> None:
    work = replace(TIMER, turns=3, tool_s=0.2, has_claims=True, spread=0.3)
    assert steady(Cluster(workers=4), work) == steady(Cluster(workers=4), work)
