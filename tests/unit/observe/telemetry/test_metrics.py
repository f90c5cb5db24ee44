"""What Prometheus is told of a run: real runs on the simulated engine, scraped over HTTP."""

import asyncio
import json
import re
import socket
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from batch_agent import AgentError, AgentResult, BatchAgent, ErrorKind, Flow, Results, SpecError, Tool
from batch_agent.cli.options.observability import telemetry_sinks
from batch_agent.core.events import (
    AgentFinished,
    AgentStarted,
    CallsEnded,
    Event,
    FlowStarted,
    RunStarted,
    ToolsUsed,
    TurnStarted,
)
from batch_agent.core.requests import Usage
from batch_agent.core.results import CallRecord
from batch_agent.observe.telemetry.metrics import Metrics
from batch_agent.sim import Script, SimConfig, SimServer

DOCS = Path(__file__).parents[4] / "docs"
PRICES = {"sim": (3.0, 0.3, 15.0)}
MANY = 40
FAILING = 4
TRIAL = Usage(32, 0, 1)
"""Of the request that finds out whether a server takes tools."""
AGENTS = "batch_agent_agents"


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True, max_model_len=1_200), Script(answer_tokens=8)) as server:
        yield server


class Scraped:
    """What was served once, as Prometheus reads it."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        return sum(
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        )

    def by(self, name: str, label: str) -> dict[str, float]:
        found: Counter[str] = Counter()
        for sample in self.samples:
            if sample.name == name:
                found[sample.labels[label]] += sample.value  # type: ignore[assignment]
        return dict(found)


class Prometheus:
    """Asks at the end, and for `sees` while the run goes. It must be named before the Metrics that it asks, which are
    then still served when it is closed."""

    def __init__(self, metrics: Metrics, sees: Callable[[Scraped], None] | None = None) -> None:
        self._metrics = metrics
        self._sees = sees
        self.last = Scraped("")

    def take(self, at: float, event: Event) -> None:
        pass

    def flush(self) -> None:
        if self._sees is not None:
            self._sees(scrape(self._metrics))

    def close(self) -> None:
        self.last = scrape(self._metrics)


def scrape(metrics: Metrics) -> Scraped:
    assert metrics.url is not None
    with urllib.request.urlopen(metrics.url, timeout=10) as answer:
        return Scraped(answer.read().decode())


@Tool.define(effect="pure")
async def look(key: str) -> str:
    """Look something up."""
    return f"about {key}"


def inputs() -> list[str]:
    """Some fail, one is answered only when it is asked again."""
    refused = [f'no {n} [[sim: {{"fault": "400"}}]]' for n in range(FAILING)]
    again = ['again [[sim: {"fault": "500", "times": 1}]]']
    calls = ['both [[sim: {"calls": [{"name": "fail", "arguments": {"key": "x"}}]}]]']
    return [*refused, *again, *calls, *(f"thing {n}" for n in range(MANY - FAILING - 2))]


def registry_of(collector: Gauge) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def now_in(registry: CollectorRegistry) -> Scraped:
    return Scraped(generate_latest(registry).decode())


async def run(sim: SimServer, *watched_by: Any, **options: Any) -> Results:
    options = {"task": "Describe {it}", "inputs": inputs(), "tools": [look], "streaming": True, **options}
    results: Results = await BatchAgent.run(
        backend=sim.url, model="sim", prices=PRICES, events=list(watched_by), **options
    )
    return results


@pytest.fixture(scope="module")
def watched(sim: SimServer) -> tuple[Results, Scraped]:
    """A run, and what was scraped of it at its end."""
    return asyncio.run(run_until_all_is_known(sim))


async def run_until_all_is_known(sim: SimServer) -> tuple[Results, Scraped]:
    """It lasts until the server's load was told of, too, which nobody hurries to ask for."""
    loop, known = asyncio.get_running_loop(), asyncio.Event()

    @Tool.define
    async def fail(key: str) -> str:
        """Never works."""
        await known.wait()
        raise ValueError(key)

    def sees(scraped: Scraped) -> None:
        if scraped.families["batch_agent_kv_usage_ratio"].samples:
            loop.call_soon_threadsafe(known.set)

    metrics = Metrics(port=0, registry=CollectorRegistry())
    prometheus = Prometheus(metrics, sees)
    results = await run(sim, prometheus, metrics, tools=[look, fail])
    return results, prometheus.last


def test_scraped_metrics_agree_with_the_results(watched: tuple[Results, Scraped]) -> None:
    results, scraped = watched
    usage = sum((result.usage for result in results), TRIAL)
    where = {"stage": "", "backend": "sim", "model": "sim"}
    finished = "batch_agent_agents_finished_total"
    assert scraped.by(finished, "outcome") == {"answered": MANY - FAILING, "failed": FAILING}
    assert scraped.total(finished, outcome="failed", error="bad_request", **where) == FAILING
    assert scraped.by("batch_agent_tokens_total", "kind") == {
        "input": usage.input,
        "cached": usage.cached,
        "written": usage.all_written,
        "output": usage.output,
    }
    dollars = ((usage.input - usage.cached) * 3.0 + usage.cached * 0.3 + usage.output * 15.0) / 1e6
    assert scraped.total("batch_agent_cost_usd_total", **where) == pytest.approx(dollars)
    turns = sum(result.turns for result in results)
    for name in ("turn", "ttft", "queue"):
        assert scraped.total(f"batch_agent_{name}_seconds_count", **where) == turns
    assert scraped.total("batch_agent_agent_seconds_count", **where) == MANY
    lived = sum(result.timing.total for result in results)
    assert scraped.total("batch_agent_agent_seconds_sum") == pytest.approx(lived)
    assert scraped.by("batch_agent_request_retries_total", "kind") == {"server": 1}


def test_tool_calls_are_told_apart_by_who_answered_them(watched: tuple[Results, Scraped]) -> None:
    results, scraped = watched
    calls = Counter((call.name, call.source, call.ok) for result in results for call in result.tool_calls)
    assert {source for _, source, _ in calls} > {"executed"}
    for (name, source, ok), count in calls.items():
        labels = {"tool": name, "source": source, "ok": str(ok).lower()}
        assert scraped.total("batch_agent_tool_calls_total", **labels) == count
    executed = Counter(call.name for result in results for call in result.tool_calls if call.source == "executed")
    assert scraped.by("batch_agent_tool_seconds_count", "tool") == executed


async def test_gauges_follow_the_run_and_are_empty_after_it(sim: SimServer) -> None:
    seen, while_it_went = asyncio.Event(), list[Scraped]()
    loop, registry = asyncio.get_running_loop(), CollectorRegistry()

    @Tool.define
    async def wait(key: str) -> str:
        """Until all agents were seen in here."""
        await seen.wait()
        return key

    def sees(scraped: Scraped) -> None:
        if scraped.total(AGENTS, state="tools") == 3 and scraped.total("batch_agent_slots_limit"):
            while_it_went.append(scraped)
            loop.call_soon_threadsafe(seen.set)

    metrics = Metrics(port=0, registry=registry)
    prometheus = Prometheus(metrics, sees)
    await run(sim, prometheus, metrics, inputs=["a", "b", "c"], tools=[wait], max_inflight=16)
    scraped = while_it_went[0]
    assert scraped.total(AGENTS) == 3
    assert scraped.total("batch_agent_inputs") == scraped.total("batch_agent_inputs_left") == 3
    assert scraped.total("batch_agent_run_info", model="sim") == 1
    assert scraped.total("batch_agent_slots_limit", backend="sim") == 16
    assert scraped.total("batch_agent_kv_tokens_limit", backend="sim") > 0
    assert prometheus.last.total("batch_agent_inputs_left") == 0
    gauges = [family for family in now_in(registry).families.values() if family.type == "gauge"]
    assert len(gauges) > 10
    assert [each for family in gauges for each in family.samples if each.value and "_created" not in each.name] == []
    with pytest.raises(OSError, match="refused"):
        scrape(metrics)


async def test_answers_from_the_checkpoint_are_counted_apart_and_nothing_twice(sim: SimServer, tmp_path: Path) -> None:
    registry, options = CollectorRegistry(), {"inputs": ["a", "b", "c"], "checkpoint_dir": tmp_path}
    await run(sim, Metrics(registry=registry), **options)
    before = now_in(registry)
    *_, fourth = await run(sim, Metrics(registry=registry), **{**options, "inputs": ["a", "b", "c", "d"]})
    after = now_in(registry)
    assert after.by("batch_agent_agents_finished_total", "outcome") == {"answered": 4, "resumed": 3}
    assert after.total("batch_agent_agent_seconds_count") == 4
    spent = before.total("batch_agent_tokens_total", kind="input") + fourth.usage.input + TRIAL.input
    assert after.total("batch_agent_tokens_total", kind="input") == spent
    assert after.total("batch_agent_turn_seconds_count") == 8


async def test_stages_of_a_flow_are_told_apart(sim: SimServer) -> None:
    registry = CollectorRegistry()
    flow = Flow([{"it": n} for n in range(5)], backend=sim.url, model="sim").map("each", "See {it}")
    outcome = await flow.reduce("all", "Join {n}.").run(events=[Metrics(registry=registry, labels={"job": "nightly"})])
    scraped = now_in(registry)
    assert scraped.by("batch_agent_agents_finished_total", "stage") == {"each": 5, "all": 1}
    for name, report in outcome.stages.items():
        spent = scraped.total("batch_agent_tokens_total", stage=name, kind="output", job="nightly")
        assert spent == report.usage.output > 0


async def test_a_long_input_in_parts_is_one_agent(sim: SimServer) -> None:
    registry = CollectorRegistry()
    words = [f"{n} " + "word " * 1_500 for n in range(2)]
    results = await run(sim, Metrics(registry=registry), inputs=words, tools=[], oversized="chunk")
    scraped = now_in(registry)
    assert scraped.by("batch_agent_agents_finished_total", "outcome") == {"answered": 2}
    assert scraped.total("batch_agent_turn_seconds_count") == sum(result.turns for result in results) > 4
    assert scraped.total("batch_agent_tokens_total", kind="input") == sum(result.usage.input for result in results)
    assert scraped.by(AGENTS, "state").keys() >= {"generating"}
    assert scraped.total(AGENTS) == 0


@pytest.mark.parametrize("is_one", [True, False], ids=["one object", "one each"])
async def test_two_runs_at_once_add_up(sim: SimServer, is_one: bool) -> None:
    registry = CollectorRegistry()
    one = Metrics(registry=registry)
    both = [
        run(sim, one if is_one else Metrics(registry=registry), inputs=[f"{n} {i}" for i in range(10)])
        for n in range(2)
    ]
    results = [result for done in await asyncio.gather(*both) for result in done]
    scraped = now_in(registry)
    assert scraped.total("batch_agent_agents_finished_total") == 20
    assert (
        scraped.total("batch_agent_tokens_total", kind="input")
        == sum(result.usage.input for result in results) + 2 * TRIAL.input
    )
    assert scraped.total(AGENTS) == scraped.total("batch_agent_inputs") == 0


async def test_the_port_is_served_until_the_last_run_is_over_and_again_for_the_next(sim: SimServer) -> None:
    metrics = Metrics(port=0, registry=CollectorRegistry())
    metrics.take(0.0, RunStarted("sim", "sim", 1, 1))  # of a run that goes on in this thread
    metrics.flush()
    await run(sim, metrics, inputs=["a"])
    assert scrape(metrics).by("batch_agent_inputs", "backend") == {"sim": 1}
    metrics.close()
    with pytest.raises(OSError, match="refused"):
        scrape(metrics)
    await run(sim, prometheus := Prometheus(metrics), metrics, inputs=["b"])
    assert prometheus.last.total("batch_agent_agents_finished_total") == 2


def test_a_metrics_port_in_use_is_an_error_before_any_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=rf"127\.0\.0\.1:{port}.*Choose another port"):
            telemetry_sinks(port, traces=False)
    with pytest.raises(SpecError, match="port must be an integer from 0 to 65535"):
        Metrics(port=70_000, registry=CollectorRegistry())


def test_labels_of_a_registry_are_the_same_for_all() -> None:
    registry = CollectorRegistry()
    Metrics(registry=registry, labels={"team": "a"})
    Metrics(registry=registry, labels={"team": "b"})
    with pytest.raises(SpecError, match="same labels"):
        Metrics(registry=registry)
    with pytest.raises(SpecError, match=r"'stage'.*is a reserved label"):
        Metrics(registry=CollectorRegistry(), labels={"stage": "a"})
    with pytest.raises(SpecError, match="cannot be registered"):
        Metrics(registry=CollectorRegistry(), labels={"__name__": "a"})
    with pytest.raises(SpecError, match="cannot be registered"):
        Metrics(registry=registry_of(Gauge("batch_agent_agents", "Of somebody else.", registry=None)))


def test_parts_that_are_called_off_with_their_agent_are_not_left_behind() -> None:
    metrics = Metrics(registry=(registry := CollectorRegistry()))
    metrics.take(0.0, RunStarted("sim", "sim", 1, 1))
    metrics.take(0.0, AgentStarted("a", 0))
    for number in range(3):
        metrics.take(0.0, TurnStarted(f"a.part{number}", 1))
    metrics.flush()
    assert now_in(registry).by(AGENTS, "state") == {"waiting": 0, "generating": 1, "tools": 0}
    failed = AgentResult(0, "a", error=AgentError(ErrorKind.SERVER, "part 1 failed"))
    metrics.take(0.0, AgentFinished(failed, resumed=False))
    metrics.flush()
    assert now_in(registry).by(AGENTS, "state") == {"waiting": 0, "generating": 0, "tools": 0}
    metrics.close()


def test_names_that_a_model_makes_up_do_not_fill_the_database() -> None:
    metrics = Metrics(registry=(registry := CollectorRegistry()))
    metrics.take(0.0, RunStarted("sim", "sim", 1, 1))
    metrics.take(0.0, AgentStarted("a", 0))
    for number in range(300):
        metrics.take(0.0, CallsEnded("a", 1, (CallRecord(f"tool-{number}", "{}", False, 0.0),), 0.0))
    metrics.close()
    calls = now_in(registry).by("batch_agent_tool_calls_total", "tool")
    assert len(calls) == 101
    assert calls["other"] == 200


@pytest.mark.parametrize("begins", [RunStarted("sim", "sim", 1, 1), FlowStarted(("each",))], ids=["run", "flow"])
def test_summaries_count_though_they_are_no_agents(begins: Event) -> None:
    metrics = Metrics(registry=(registry := CollectorRegistry()))
    metrics.take(0.0, begins)
    metrics.take(0.0, ToolsUsed((), Usage(50, 20, 5)))
    metrics.close()
    assert now_in(registry).by("batch_agent_tokens_total", "kind") == {
        "input": 50,
        "cached": 20,
        "written": 0,
        "output": 5,
    }


def test_without_prometheus_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SpecError, match=re.escape("pip install 'batch-agent[metrics]'")):
        Metrics()


def test_the_dashboard_asks_only_for_what_there_is(watched: tuple[Results, Scraped]) -> None:
    panels, names = dashboard()["panels"], {sample.name for sample in watched[1].samples}
    asked = {
        name
        for panel in panels
        for target in panel.get("targets", [])
        for name in re.findall(r"\bbatch_agent_\w+", target["expr"])
    }
    variables = json.dumps(dashboard()["templating"])
    asked |= set(re.findall(r"\bbatch_agent_\w+", variables))
    assert asked - names == set()
    told = {re.sub("_(bucket|count|sum|created)$", "", name) for name in names if name.startswith("batch_agent_")}
    shown = {re.sub("_(bucket|count|sum)$", "", name) for name in asked}
    assert {re.sub("_total$", "", name) for name in told} - {re.sub("_total$", "", name) for name in shown} == set()


def test_no_panel_of_the_dashboard_hides_another() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24


def test_the_docs_name_every_metric_with_its_labels(watched: tuple[Results, Scraped]) -> None:
    rows = re.findall(r"^\| `batch_agent_(\w+)` \| (\w+) \|([^|]*)\|", (DOCS / "metrics.md").read_text(), re.M)
    told = {name.removesuffix("_total"): (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    there = {}
    for name, family in watched[1].families.items():
        if name.startswith("batch_agent_") and not name.endswith("_created"):
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            there[name.removeprefix("batch_agent_")] = (family.type, labels)
    assert told == there


def dashboard() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((DOCS / "grafana" / "batch-agent.json").read_text())
    return read
