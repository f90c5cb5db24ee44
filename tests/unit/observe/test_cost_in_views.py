"""What a run costs has one name, `cost`, and is in every view where the price of the model is known."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batch_agent import BatchAgent, Flow
from batch_agent.cli.commands.inspect import inspect
from batch_agent.core.events import RunStarted, TurnEnded, WorkerEvent
from batch_agent.core.protocols.store import Account
from batch_agent.core.requests import Usage
from batch_agent.core.results import dollars
from batch_agent.lanes import lane_turn_runner
from batch_agent.observe.report.log_follower import LogFollower
from batch_agent.observe.report.page_model import model_of
from batch_agent.observe.report.run_view import RunView
from batch_agent.schedule.retry import Backoff
from batch_agent.sim import FaultRates, Script, SimConfig, SimServer
from batch_agent.store.sqlite import SqliteStore

PRICES = {"sim": (10.0, 1.0, 40.0)}
INPUTS = ["one", "two", "three"]


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=8)) as server:
        yield server


def model_in(folder: Path) -> dict[str, Any]:
    follower = LogFollower(folder)
    follower.read_all()
    return follower.model()


async def test_results_report_and_inspect_agree_on_the_cost(
    sim: SimServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = await BatchAgent.run(
        task="{it}", inputs=INPUTS, backend=sim.url, prices=PRICES, checkpoint_dir=tmp_path, progress=True
    )
    cost = results.cost
    assert cost is not None
    [stage] = model_in(tmp_path)["stages"]
    assert stage["cost"] == pytest.approx(cost)
    assert sum(agent["cost"] for agent in stage["slowest"]) == pytest.approx(cost)
    assert f"Cost: {dollars(cost)}." in capsys.readouterr().err
    inspect(tmp_path)
    assert f"cost      {dollars(cost)}\n" in capsys.readouterr().out


async def test_what_a_killed_process_had_set_aside_is_not_shown_as_cost(
    sim: SimServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"backend": sim.url, "prices": PRICES, "checkpoint_dir": tmp_path, "max_usd": 1.0}
    await BatchAgent.run(task="{it}", inputs=INPUTS[:1], **options)
    store = SqliteStore(tmp_path)
    await store.open()
    await store.save_account(Account(None, 0.3))  # as a kill leaves it
    await store.aclose()
    results = await BatchAgent.run(task="{it}", inputs=INPUTS, progress=True, **options)
    assert results.cost is not None
    shown = capsys.readouterr().err
    assert f"Cost: {dollars(results.cost)}; the budget counts $0.2" in shown
    assert "more for requests without an answer, which may have cost less." in shown


async def test_a_run_without_prices_shows_no_cost(
    sim: SimServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = await BatchAgent.run(task="{it}", inputs=INPUTS, backend=sim.url, checkpoint_dir=tmp_path)
    assert results.cost is None
    [stage] = model_in(tmp_path)["stages"]
    assert stage["cost"] is None
    assert {agent["cost"] for agent in stage["slowest"]} == {None}
    inspect(tmp_path)
    assert "cost " not in capsys.readouterr().out


async def test_the_stages_of_a_flow_have_a_cost_as_their_results_have(sim: SimServer) -> None:
    outcome = await Flow(INPUTS, backend=sim.url, prices=PRICES).map("read", "{it}").map("judge", "{read}").run()
    for stage in outcome.stages.values():
        assert stage.cost == pytest.approx(stage.results.cost)
    assert outcome.cost == pytest.approx(sum(stage.cost or 0 for stage in outcome.stages.values()))
    assert outcome.cost is not None
    assert outcome._repr_html_().count(f"; {dollars(outcome.cost)}<") == 1


@pytest.mark.parametrize(("prices", "cost"), [((1.0, 0.5, 2.0), 0.0025), (None, None)])
def test_workers_have_the_cost_of_their_turns(prices: tuple[float, float, float] | None, cost: float | None) -> None:
    view = RunView()
    view.take(0.0, RunStarted("vllm", "m", 8, None, prices=prices))
    view.take(1.0, WorkerEvent("east", TurnEnded("a", 1, Usage(2000, 1000, 500), "stop", 0.0, 1.0, None, 1)))
    model = model_of(view, title="", began=None, now=0.0, is_running=True, is_closed=False)
    assert [worker["cost"] for worker in model["workers"]] == [cost]


async def test_views_show_what_was_spent_in_each_lane(
    sim: SimServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"task": "{it}", "backend": sim.url, "prices": PRICES, "checkpoint_dir": tmp_path}
    await BatchAgent.run(inputs=INPUTS[:1], lane="flex", **options)
    results = await BatchAgent.run(inputs=INPUTS, progress=True, **options)
    costs = [result.cost or 0.0 for result in results]
    assert costs[0] == pytest.approx(costs[1] / 2, rel=0.1)
    [stage] = model_in(tmp_path)["stages"]
    lanes = {lane["lane"]: lane["cost"] for lane in stage["lanes"]}
    assert lanes == {"standard": pytest.approx(sum(costs[1:])), "flex": pytest.approx(costs[0])}
    spent = f"{dollars(sum(costs[1:]))} in standard, {dollars(costs[0])} in flex"
    assert f"Cost: {dollars(sum(costs))} ({spent})." in capsys.readouterr().err
    inspect(tmp_path)
    assert f"cost      {dollars(sum(costs))} ({spent})\n" in capsys.readouterr().out
    assert [row["lane"] for row in results.to_pandas().to_dict("records")] == ["flex", "standard", "standard"]


async def test_the_summary_counts_requests_that_fell_back_and_those_that_were_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_turn_runner, "_PATIENCE", 0.05)
    monkeypatch.setattr(lane_turn_runner, "_BACKOFF", Backoff(0.01, 0.02))
    with SimServer(
        SimConfig(zero_latency=True, faults=FaultRates(flex_unavailable=1.0)), Script(answer_tokens=8)
    ) as sim:
        await BatchAgent.run(
            task="{it}",
            inputs=INPUTS,
            backend=sim.url,
            lane="flex",
            progress=True,
            checkpoint_dir=tmp_path,
        )
    shown = capsys.readouterr().err
    assert re.search(r"^Lanes: 3 requests fell back to standard, \d+ refused for capacity\.$", shown, re.MULTILINE)
    assert "Retried requests" not in shown
    assert model_in(tmp_path)["scheduling"]["lanes"].startswith("3 requests fell back to standard, ")
