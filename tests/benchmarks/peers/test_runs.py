"""Real peers, in processes of their own, on a simulated engine."""

from dataclasses import replace

import pytest
from benchmarks.peers.environments import AURORA, PINS, NotThere, python_of, words_of
from benchmarks.peers.participants import CHECKPOINTS
from benchmarks.peers.rounds import compared
from benchmarks.peers.runs import Broken, measure, servers
from benchmarks.peers.work import Tally, Work
from benchmarks.peers.workloads import WORKLOADS, Workload

SMALL = replace(WORKLOADS["ten_keys_64"], agents=20, inflight=4, keys=2, tool_s=0.0)


@pytest.mark.slow
def test_peers_do_the_same_work_on_the_same_server() -> None:
    found = compared("small", SMALL, ["batch_agent", "expert", "gather", "batch_agent_lists"], 1)
    assert found["left_out"] == {}
    assert {peer: one["answered"] for peer, one in found["medians"].items()} == dict.fromkeys(
        ("batch_agent", "expert", "gather"), 20
    )
    executed = {peer: one["executions"] for peer, one in found["medians"].items()}
    assert executed == {"batch_agent": 2, "expert": 2, "gather": 20}
    for peer, one in found["medians"].items():
        assert one["requests"] in (40, 41), peer  # ours looks first whether the server takes calls of tools
        assert one["failed"] == one["lost"] == one["doubled"] == 0
        assert one["cpu_s"] > 0
        assert one["peak_mb"] > 10


@pytest.mark.slow
def test_runs_are_measured_with_and_without_a_checkpoint() -> None:
    found = compared("small", replace(SMALL, kind=CHECKPOINTS), ["batch_agent", "expert", "gather"], 1)
    assert found["medians"].keys() == {"batch_agent", "expert"}  # the plain loop has none
    for one in found["medians"].values():
        assert one["answered"] == 20
        assert one["cpu_without_s"] > 0


@pytest.mark.slow
def test_memory_of_waiting_agents_is_measured() -> None:
    waiting: Workload = replace(SMALL, keys=2**32)
    with servers(waiting) as sims:
        found = measure("expert", waiting, sims, holds=True)
    assert found["executions"] == 20
    assert found["waiting_kb"] > 1_000


def test_a_peer_that_cannot_start_reports_the_reason() -> None:
    with servers(SMALL) as sims, pytest.raises(Broken, match="No module named"):
        measure("nobody", SMALL, sims)


def test_a_peer_that_is_not_on_pypi_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AURORA, raising=False)
    with pytest.raises(NotThere, match=AURORA):
        python_of("aurora_swarm")


def test_a_peer_process_does_not_inherit_the_python_path_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    assert "PYTHONPATH" not in words_of("expert")


def test_every_pinned_package_reports_its_version() -> None:
    wanted = [each for name, pins in PINS.items() if name != "bare" for each in pins]
    assert [each for each in wanted if "==" not in each] == []


def test_work_for_a_real_server_has_its_model_and_answer_length() -> None:
    work = Work(("http://127.0.0.1:1",), agents=1, inflight=1, model="m", answer_tokens=64)
    assert Work.from_json(work.to_json()) == work
    assert work.options == {"model": "m", "max_tokens": 64, "ignore_eos": True}
    assert list(Work(work.urls, 1, 1, tool_s=0.0).options) == ["model", "tools"]


async def test_the_tally_counts_failed_lost_and_duplicate_results() -> None:
    tally = Tally(Work(("http://127.0.0.1:1",), agents=4, inflight=1, tool_s=0.0))
    tally.tell(0, "fine")
    tally.tell(0, "fine")
    tally.fail(1, ValueError("no"))
    assert await tally.look("a") == "the value of a"
    found = tally.numbers()
    assert {name: found[name] for name in ("answered", "failed", "lost", "doubled", "executions")} == {
        "answered": 1,
        "failed": 1,
        "lost": 2,
        "doubled": 1,
        "executions": 1,
    }
    assert tally.first_words == "ValueError: no"
