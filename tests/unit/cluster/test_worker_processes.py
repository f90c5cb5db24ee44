"""Real processes that share a run at a real server; tests/live/test_shared_runs.py has all that may happen to them."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.redis_server import AOF, RedisServer, redis_of_its_own
from tests.support.shared_run_scene import ProcessParent, Scene, agents, engine

AGENTS = 60
HELD_BACK = 10
"""So many inputs come only when the worker has been stopped: until then no worker leaves, also on a busy machine."""


@pytest.fixture(scope="module")
def parent() -> Iterator[ProcessParent]:
    with ProcessParent() as started:
        yield started


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    with engine() as started:
        yield started.url


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_of_its_own(*AOF) as started:
        yield started


@pytest.fixture
def scene(tmp_path: Path, parent: ProcessParent, engine_url: str, server: RedisServer) -> Iterator[Scene]:
    with Scene(tmp_path, parent, engine_url, server.url) as opened:
        opened.options["lease"] = 1.0
        yield opened


def check(scene: Scene) -> None:
    results = scene.results()
    assert sorted(result["index"] for result in results) == list(range(AGENTS)), scene.said()
    assert all(result["output"] == f"answer {result['index']}" for result in results)
    assert max(Counter(made.what for made in scene.made("put")).values()) == 1, "a doubled write"


@pytest.mark.slow
@pytest.mark.parametrize("max_agents", [4, 1_000], ids=["waiting for writes", "not waiting"])
def test_a_killed_worker_and_a_killed_redis_lose_and_repeat_nothing(
    scene: Scene, server: RedisServer, max_agents: int
) -> None:
    scene.options["max_agents"] = max_agents
    caller, [victim, _] = scene.call(agents(AGENTS), works=True, held_back=HELD_BACK), scene.workers(2)
    scene.until_results(AGENTS // 4)
    victim.kill()
    scene.go()
    server.kill()
    server.start()
    scene.end(caller)
    check(scene)


@pytest.mark.slow
def test_a_worker_that_is_stopped_returns_its_leases_at_once(scene: Scene) -> None:
    scene.options["lease"] = 600.0
    caller, [victim, _] = scene.call(agents(AGENTS), held_back=HELD_BACK), scene.workers(2)
    scene.until_results(AGENTS // 4)
    victim.signal(signal.SIGTERM)
    assert victim.wait() == 143
    scene.go()
    scene.end(caller)
    check(scene)


@pytest.mark.slow
def test_a_limit_of_concurrent_calls_holds_for_all_processes_and_survives_the_kill_of_one(scene: Scene) -> None:
    scene.most, scene.seconds_of_tools = 3, 0.05
    caller, [victim, _, _] = scene.call(agents(AGENTS)), scene.workers(3)
    scene.until_results(AGENTS // 4)
    scene.until(lambda: is_inside(scene, victim.name))
    killed = {victim.name: victim.kill()}
    scene.end(caller)
    check(scene)
    assert max(most_inside(scene, killed)) == 3


def is_inside(scene: Scene, name: str) -> bool:
    """Whether this process makes a call now."""
    return sum(1 if made.what == "entered" else -1 for made in scene.made("inside") if made.name == name) > 0


def most_inside(scene: Scene, killed: dict[str, float]) -> Iterator[int]:
    """Calls that all processes make at once, at each change; those of a killed one end with it."""
    counts: Counter[str] = Counter()
    for made in sorted(scene.made("inside"), key=lambda made: made.at):
        for name in [name for name, at in killed.items() if at < made.at]:
            del counts[name]
        counts[made.name] += 1 if made.what == "entered" else -1
        yield counts.total()
