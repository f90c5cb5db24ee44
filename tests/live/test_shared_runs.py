"""Runs that processes share, and what may happen to these: nothing is lost, nothing is doubled, no answer changes, and
nothing is asked again but what was under way where it happened. Real processes, a real server, an engine over HTTP."""

import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.breakable_proxy import BreakableProxy
from tests.support.redis_server import AOF, RedisServer, redis_of_its_own
from tests.support.shared_run_process import STORE_FAILED
from tests.support.shared_run_scene import LEASE, ProcessParent, Scene, SharedRunProcess, agent, agents, engine

from batch_agent.sim import SimServer

MANY = 1_000
SOME = 300
HELD_BACK = 60
WORKERS = 4
LONG_LEASE = 600.0
FLUSH_INTERVAL = 1.0
"""Seconds in which an answer is known to everybody, on the slowest of machines."""
EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec")


@pytest.fixture(scope="module")
def parent() -> Iterator[ProcessParent]:
    with ProcessParent() as started:
        yield started


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with engine() as started:
        yield started


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_of_its_own(*AOF) as started:
        yield started


@pytest.fixture
def scene(tmp_path: Path, parent: ProcessParent, sim: SimServer, server: RedisServer) -> Iterator[Scene]:
    with Scene(tmp_path, parent, sim.url, server.url) as opened:
        yield opened


def check_results(scene: Scene, number: int, caller: str = "caller") -> None:
    """Each is there once, and right; and so is what changes something."""
    results = scene.results(caller)
    assert sorted(result["index"] for result in results) == list(range(number)), scene.said()
    for result in results:
        assert (result["output"], result["error"]) == (f"answer {result['index']}", None)
    put = Counter(made.what for made in scene.made("put"))
    assert max(put.values()) == 1, "a doubled write"
    for result in results:
        is_made = dict(result["calls"])["put"]
        assert put[f"n{result['index']}"] == 1 or not is_made, "a lost write"


def check_asked_again(scene: Scene, victim: SharedRunProcess, at: float) -> None:
    """Only, and only once, what the victim had asked and had no answer to when it happened; or one which was still on
    its way to the server."""
    again = scene.asked_again()
    assert set(again.values()) <= {1}
    assert set(again) <= {turn.which for turn in scene.turns() if turn.name == victim.name}
    known = {turn.which for turn in scene.turns("answered") if turn.at < at - FLUSH_INTERVAL}
    assert not known & set(again)


def check_nothing_was_asked_again(scene: Scene, number: int) -> None:
    assert not scene.asked_again()
    assert len(scene.turns()) == 2 * number


@pytest.mark.nightly
def test_a_thousand_agents_on_four_workers_each_run_once(scene: Scene, sim: SimServer) -> None:
    before = sim.metrics()["sim:http_requests_total"]
    caller, workers = scene.call(agents(MANY)), scene.workers(WORKERS)
    scene.end(caller, *workers)
    check_results(scene, MANY)
    check_nothing_was_asked_again(scene, MANY)
    assert len({turn.name for turn in scene.turns()}) == WORKERS
    looks = WORKERS + 1  # each process has asked what the engine can do
    assert sim.metrics()["sim:http_requests_total"] - before == 2 * MANY + looks


@pytest.mark.nightly
def test_submitters_that_also_work_share_the_agents_and_each_get_all_results(scene: Scene) -> None:
    callers = [scene.call(agents(SOME), f"caller {n}", works=True) for n in range(3)]
    scene.end(*callers)
    for caller in callers:
        check_results(scene, SOME, caller.name)
    check_nothing_was_asked_again(scene, SOME)
    assert len({turn.name for turn in scene.turns()}) == len(callers)


def test_a_killed_worker_repeats_only_its_turns_in_flight(scene: Scene) -> None:
    caller, [victim, *workers] = scene.call(agents(MANY)), scene.workers(WORKERS)
    scene.until_results(MANY * 3 // 10)
    killed = victim.kill()
    scene.end(caller, *workers)
    check_results(scene, MANY)
    check_asked_again(scene, victim, killed)


def test_a_restarted_submitter_repeats_no_answered_request(scene: Scene) -> None:
    first, workers = scene.call(agents(MANY), "first"), scene.workers(WORKERS)
    scene.until_results(MANY // 2, "first")
    first.kill()
    caller = scene.call(agents(MANY))
    scene.end(caller, *workers)
    check_results(scene, MANY)
    check_nothing_was_asked_again(scene, MANY)


@pytest.mark.nightly
def test_a_killed_submitter_that_works_repeats_only_its_turns_in_flight(scene: Scene) -> None:
    first, workers = scene.call(agents(SOME), "first", works=True), scene.workers(2)
    scene.until_results(SOME // 2, "first")
    killed = first.kill()
    caller = scene.call(agents(SOME), works=True)
    scene.end(caller, *workers)
    check_results(scene, SOME)
    check_asked_again(scene, first, killed)


@pytest.mark.parametrize(
    "options", [AOF, pytest.param(EVERY_SECOND, marks=pytest.mark.nightly)], ids=["always", "everysec"]
)
def test_a_run_continues_when_its_coordinator_is_restarted(
    tmp_path: Path, parent: ProcessParent, sim: SimServer, options: tuple[str, ...]
) -> None:
    with redis_of_its_own(*options) as server, Scene(tmp_path, parent, sim.url, server.url) as scene:
        caller, workers = scene.call(agents(SOME)), scene.workers(WORKERS)
        scene.until_results(SOME // 3)
        server.kill()
        time.sleep(LEASE)
        server.start()
        scene.end(caller, *workers)
        check_results(scene, SOME)
        check_nothing_was_asked_again(scene, SOME)


@pytest.mark.nightly
def test_work_lost_in_the_last_second_of_the_coordinator_is_repeated(scene: Scene, server: RedisServer) -> None:
    scene.tools = ["look"]
    caller = scene.call([agent(n, looks_for=f"k{n}") for n in range(SOME)], held_back=HELD_BACK)
    workers = scene.workers(WORKERS)
    scene.until_results(SOME - HELD_BACK)
    [file] = (server.folder / "appendonlydir").glob("*.incr.aof")
    kept = file.stat().st_size
    scene.go()
    scene.until_results(SOME - HELD_BACK // 2)
    server.kill()
    os.truncate(file, kept)
    server.start()
    scene.end(caller, *workers)
    results = scene.results()
    assert sorted(result["index"] for result in results) == list(range(SOME)), scene.said()
    assert all(result["output"] == f"answer {result['index']}" for result in results)


@pytest.mark.nightly
def test_a_removed_run_ends_with_advice_and_no_process_waits_forever(scene: Scene, server: RedisServer) -> None:
    callers = [scene.call(agents(SOME), held_back=HELD_BACK), scene.call(agents(SOME), "another", works=True)]
    workers = scene.workers(2)
    scene.until_results(SOME // 4)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        assert connection.recv(16) == b"+OK\r\n"
    scene.go()
    assert [caller.wait() for caller in callers] == [STORE_FAILED] * 2
    for name in ("caller", "another"):
        assert "has lost run 'run': it was deleted" in scene.lines(f"said by {name}")[-1]
    for worker in workers:  # what is posted from then on is work, too
        assert worker.wait() in (0, STORE_FAILED)


def test_a_worker_disconnected_past_its_lease_does_no_harm_and_takes_other_agents(
    scene: Scene, server: RedisServer
) -> None:
    with BreakableProxy(server.port).open() as way:
        caller = scene.call(agents(SOME), held_back=HELD_BACK)
        victim, workers = scene.work("victim", way.url), scene.workers(WORKERS - 1)
        scene.until_results(SOME // 4)
        cut = way.cut()
        scene.until_results(SOME - HELD_BACK)  # also what the victim held
        mended = way.mend()
        scene.until(lambda: any(turn.name == victim.name for turn in scene.turns("moved")))
        scene.go()
        scene.end(caller, victim, *workers)
    check_results(scene, SOME)
    check_asked_again(scene, victim, cut)
    assert max(turn.at for turn in scene.turns() if turn.name == victim.name) > mended


@pytest.mark.nightly
def test_writes_about_an_agent_leased_by_another_worker_are_refused(scene: Scene, server: RedisServer) -> None:
    scene.seconds_of_tools = 4 * LEASE  # long enough for both to be at it
    with BreakableProxy(server.port).open() as way:
        caller, victim = scene.call(agents(40)), scene.work("victim", way.url)
        scene.until(lambda: bool(scene.turns()))
        cut = way.cut()  # it has not said yet that it puts something there
        workers = scene.workers(WORKERS - 1)
        scene.until(lambda: bool(scene.asked_again()))
        way.mend()
        scene.end(caller, victim, *workers)
    check_results(scene, 40)
    check_asked_again(scene, victim, cut)
    taken_over = {key for key, _ in scene.asked_again()}
    assert {turn.key for turn in scene.turns("moved")} >= taken_over


@pytest.mark.nightly
def test_a_worker_suspended_past_its_lease_does_no_harm_and_takes_other_agents(scene: Scene) -> None:
    caller = scene.call(agents(SOME), held_back=HELD_BACK)
    [victim, *workers] = scene.workers(WORKERS)
    scene.until_results(SOME // 4)
    stopped = victim.signal(signal.SIGSTOP)
    scene.until_results(SOME - HELD_BACK)
    victim.signal(signal.SIGCONT)
    scene.until(lambda: any(turn.name == victim.name for turn in scene.turns("moved")))
    scene.go()
    scene.end(caller, *workers, victim)
    check_results(scene, SOME)
    check_asked_again(scene, victim, stopped)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.nightly)]
)
def test_a_stopped_worker_hands_over_its_agents_at_once(scene: Scene, number: signal.Signals, status: int) -> None:
    scene.options["lease"] = LONG_LEASE
    caller = scene.call(agents(SOME), held_back=HELD_BACK)
    [victim, *workers] = scene.workers(WORKERS)
    scene.until_results(SOME // 3)
    told = victim.signal(number)
    assert victim.wait() == status
    scene.go()
    scene.end(caller, *workers)  # long before a lease has run out
    check_results(scene, SOME)
    check_asked_again(scene, victim, told)


def test_equal_reads_of_two_hundred_agents_on_four_workers_are_executed_once(scene: Scene) -> None:
    scene.tools = ["look"]
    caller = scene.call([agent(n, looks_for="the_same") for n in range(200)])
    workers = scene.workers(WORKERS)
    scene.end(caller, *workers)
    assert sorted(result["output"] for result in scene.results()) == sorted(f"answer {n}" for n in range(200))
    assert len({turn.name for turn in scene.turns()}) == WORKERS
    assert len(scene.made("looked")) == 1


@pytest.mark.nightly
def test_a_shared_read_of_a_killed_worker_is_executed_by_another(scene: Scene) -> None:
    scene.tools, scene.seconds_of_tools = ["look"], 1.0
    caller = scene.call([agent(n, looks_for="the_same") for n in range(40)])
    workers = {worker.name: worker for worker in scene.workers(WORKERS)}
    scene.until(lambda: bool(scene.made("looked")))
    workers.pop(scene.made("looked")[0].name).kill()
    scene.end(caller, *workers.values())
    assert sorted(result["output"] for result in scene.results()) == sorted(f"answer {n}" for n in range(40))
    assert len(scene.made("looked")) == 2


def test_a_write_of_a_killed_worker_is_not_repeated(scene: Scene) -> None:
    scene.seconds_of_tools = 2.0
    caller, victim = scene.call(agents(20)), scene.work("victim")
    scene.until(lambda: bool(scene.made("put")))
    victim.kill()
    scene.end(caller, scene.work("another"))
    check_results(scene, 20)
    unknown = {f"n{result['index']}" for result in scene.results() if not dict(result["calls"])["put"]}
    assert unknown >= {made.what for made in scene.made("put") if made.name == victim.name}


@pytest.mark.nightly
def test_workers_share_the_rate_limit_of_a_tool(scene: Scene) -> None:
    scene.tools, scene.rate = ["look"], 20.0
    caller = scene.call([agent(n, looks_for=f"k{n}") for n in range(60)])
    workers = scene.workers(WORKERS)
    scene.end(caller, *workers)
    assert len(scene.results()) == 60
    times = sorted(made.at for made in scene.made("looked"))
    assert len(times) == 60
    assert times[-1] - times[0] >= 58 / scene.rate  # one may be late at first, and none is early


def test_workers_together_never_exceed_max_inflight(scene: Scene) -> None:
    scene.options["max_inflight"] = 8
    caller, [victim, *workers] = scene.call(agents(SOME)), scene.workers(WORKERS)
    scene.until_results(SOME // 2)
    killed = victim.kill()
    scene.end(caller, *workers)
    check_results(scene, SOME)
    assert most_at_once(scene, {victim.name: killed}) <= 8


def most_at_once(scene: Scene, ends: dict[str, float]) -> int:
    """Of requests in flight. `ends`: when what a process had under way ended with it."""
    answered = {(turn.name, turn.which): turn.at for turn in scene.turns("answered")}
    changes = []
    for turn in scene.turns():
        changes += [(turn.at, 1), (answered.get((turn.name, turn.which), ends.get(turn.name, turn.at)), -1)]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("max_tokens", "least"),
    [(60, 0.8), pytest.param(None, 0.5, marks=pytest.mark.nightly)],
    ids=["max_tokens", "derived limit"],
)
def test_workers_together_never_exceed_the_budget_even_if_one_is_killed(
    scene: Scene, sim: SimServer, max_tokens: int | None, least: float
) -> None:
    budget = 60_000  # enough for about half of the agents
    scene.options |= {"max_total_tokens": budget, "max_tokens": max_tokens}
    before = tokens(sim)
    scene.end(scene.call([], "nobody"))
    look = tokens(sim) - before  # what it takes to ask what the engine can do
    caller, [victim, *workers] = scene.call(agents(SOME)), scene.workers(WORKERS)
    scene.until_results(SOME // 4)
    victim.kill()
    scene.end(caller, *workers)
    spent = tokens(sim) - before - (WORKERS + 2) * look
    assert budget * least <= spent <= budget  # the rest: what the killed worker held, and the last reservations
    results = scene.results()
    assert sorted(result["index"] for result in results) == list(range(SOME))
    failed = [result["error"] for result in results if result["error"]]
    assert 0 < len(failed) < SOME * 3 // 4  # what the killed worker had begun is paid again
    assert all(error.startswith("budget: The budget is used up") for error in failed)
    assert max(Counter(made.what for made in scene.made("put")).values()) == 1


def tokens(sim: SimServer) -> float:
    """That the engine has read and written."""
    metrics = sim.metrics()
    return metrics["vllm:prompt_tokens_total"] + metrics["vllm:generation_tokens_total"]
