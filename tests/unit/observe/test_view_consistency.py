"""The state, the report, the metrics and the results of a run say the same, whatever happens in it."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.support.event_logs import seen

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, Flow, FlowResult, Results, RunStopped, Tool
from batch_agent.core.events import AgentFinished, Event
from batch_agent.core.requests import NO_USAGE, Reply, Request, Usage
from batch_agent.observe.event_log import FILE
from batch_agent.observe.live.state import LiveStage, LiveState
from batch_agent.observe.report.html import REPORT
from batch_agent.observe.telemetry.metrics import Metrics
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import ScriptedBackend, say

PRICES = {"sim": (3.0, 0.3, 15.0)}
NUMBERS = [f"number {number}" for number in range(8)]
OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
Ending = Results | FlowResult | None
Run = Callable[..., Awaitable[Ending]]


@Tool.define(effect="read")
async def look(key: str) -> str:
    """Look a key up."""
    if key == "lost":
        raise ValueError("there is no such key")
    return f"about {key}"


@Tool.define(effect="read")
async def read(page: str) -> str:
    """Read a page."""
    return "word " * 300


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True, max_model_len=2_000), Script(answer_tokens=8, keys=3)) as server:
        yield server


def orders(*each: Mapping[str, Any]) -> str:
    """What the simulated model does, turn by turn."""
    return f"[[sim: {json.dumps(each)}]]"


def calls(tool: str, **arguments: str) -> dict[str, Any]:
    return {"calls": [{"name": tool, "arguments": arguments}]}


class Watched:
    """A run that goes on in one process after another, and everybody who watches it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = CollectorRegistry()
        self.boards: list[LiveState] = []
        self.ahead = NO_USAGE
        """What was used by agents that nobody was told of."""

    async def process(self, run: Run, *others: Any) -> Ending:
        """One of them, to its end. Raises what the run raises, after a look at what the views say of it."""
        self.boards.append(LiveState())
        told: dict[str, Sequence[AgentResult]] = {}
        try:
            ending = await run(
                checkpoint_dir=self.folder, events=[self.boards[-1], *others, Metrics(registry=self.registry)]
            )
            told = _stages(ending)
        except RunStopped as stopped:
            told = _stages(stopped.flow or Results(stopped.results))
            raise
        finally:
            self._compare(told)
        return ending

    def _compare(self, told: Mapping[str, Sequence[AgentResult]]) -> None:
        state, view = self.boards[-1], seen(self.folder)
        assert [stage["name"] for stage in view["stages"]] == list(state.stages)
        for shown in view["stages"]:
            self._compare_stage(shown, told.get(shown["name"]))
        called = {name for each in self.boards for name in each.tools.by_tool}
        assert called <= {tool["name"] for tool in view["tools"]}, "also those that a model made up"
        turned = sum((each.turn_usage + each.tools.summaries for each in self.boards), NO_USAGE)
        retries = sum((stage.stats.retries for stage in self._all_stages()), Counter[str]())
        assert self._counted("tokens_total", "kind") == _positive(_kinds(turned))
        assert self._counted("request_retries_total", "kind") == retries
        assert self._counted("tool_calls_total", "source") == self._sources()
        assert self._counted("agents_finished_total", "error") == self._ends()
        assert self._counted("agents", "state") == {}, "a run that is over has no agents"

    def _compare_stage(self, shown: Mapping[str, Any], results: Sequence[AgentResult] | None) -> None:
        """`results`: None of a process that was cut off."""
        name = shown["name"]
        stage = self.boards[-1].stages[name]
        stats, kinds = stage.stats, {kind: count for kind, count, _ in stage.stats.failures.groups}
        assert shown["total"] == stage.total
        assert shown["retries"] == sum(each.stats.retries.total() for each in self._all_stages(name))
        summaries = [NO_USAGE if name else state.tools.summaries for state in self.boards]
        turned = sum((each.turn_tokens.usage for each in self._all_stages(name)), sum(summaries, self.ahead))
        assert shown["usage"] == _kinds(turned)
        assert shown["cost"] == pytest.approx(_cost(turned), abs=1e-6)
        if results is None:
            return
        assert (shown["answered"], shown["failed"], shown["resumed"]) == (stats.ok, stats.failed, stats.resumed)
        assert {each["kind"]: each["count"] for each in shown["failures"]} == kinds
        assert stats.done == len(results)
        assert kinds == Counter(result.error.kind for result in results if result.error)
        assert stats.turns == sum(result.turns for result in results)
        assert stats.tool_calls == sum(len(result.tool_calls) for result in results)
        assert stats.usage == sum((result.usage for result in results), summaries[-1])

    def _all_stages(self, name: str | None = None) -> list[LiveStage]:
        """Those of all processes."""
        return [stage for state in self.boards for each, stage in state.stages.items() if name is None or each == name]

    def _sources(self) -> dict[str, int]:
        sources: Counter[str] = Counter()
        for state in self.boards:
            sources.update(state.tools.total.sources)
        return _positive(sources)

    def _ends(self) -> dict[str, int]:
        """Of agents, by their error; those from the checkpoint have had theirs."""
        ends: Counter[str] = Counter()
        for stage in self._all_stages():
            ends.update({kind: count for kind, count, _ in stage.stats.failures.groups})
            ends[""] += stage.stats.ok
        return _positive(ends)

    def _counted(self, name: str, label: str) -> dict[str, int]:
        """By Prometheus."""
        found: Counter[str] = Counter()
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name == f"batch_agent_{name}":
                    found[sample.labels[label]] += round(sample.value)
        return _positive(found)


def _stages(ending: Ending) -> dict[str, Sequence[AgentResult]]:
    match ending:
        case Results(stages=stages) if stages:
            return {name: report.results for name, report in stages.items()}
        case Results():
            return {"": ending}
        case FlowResult(stages=stages):
            return {name: report.results for name, report in stages.items()}
        case None:
            return {}


def _kinds(usage: Usage) -> dict[str, int]:
    return {"input": usage.input, "cached": usage.cached, "written": usage.all_written, "output": usage.output}


def _positive(counts: Mapping[str, int]) -> dict[str, int]:
    return {str(name): count for name, count in counts.items() if count}


def _cost(usage: Usage) -> float:
    fresh, cached, output = PRICES["sim"]
    return ((usage.input - usage.cached) * fresh + usage.cached * cached + usage.output * output) / 1e6


def of(sim: SimServer, inputs: Any = NUMBERS, **options: Any) -> Run:
    """A run without stages."""

    async def run(**watching: Any) -> Results:
        given = inputs() if callable(inputs) else inputs
        settings = {"task": "Say it: {it}", "backend": sim.url, "model": "sim", "prices": PRICES, "backoff": 0.01}
        results: Results = await BatchAgent.run(inputs=given, **{**settings, **options}, **watching)
        return results

    return run


TROUBLE = [
    "fine",
    orders({"fault": "500", "times": 1}),
    orders({"fault": "400"}),
    orders({"fault": "500"}),
    orders(calls("look", key="lost")),
    orders(calls("made_up")),
    orders({"fault": "429", "times": 1, "retry_after_s": 0.05}),
    orders({"fault": "reset", "times": 1}),
    orders({"fault": "garbage", "times": 1}),
    orders(*[{"text": "no JSON"}] * 4),
    "word " * 3_000,
    7,
]
PAGES = [orders(*(calls("read", page=f"{book}.{page}") for page in range(7))) for book in range(2)]
EARLY = [*NUMBERS, orders({**calls("look", key="z"), "fault": "truncated", "times": 1})]
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (NUMBERS, {}),
    "shared tools": (NUMBERS, {"tools": [look]}),
    "read as they come": (lambda: iter([*NUMBERS, {"other": 1}]), {}),
    "trouble": (TROUBLE, {"tools": [look], "output_schema": OBJECT, "max_retries": 2}),
    "in parts": (["word " * 3_000, "short", orders({"fault": "400"})], {"oversized": "chunk", "max_tokens": 50}),
    "compacted": (PAGES, {"tools": [read], "compact_with": "summarize", "max_tokens": 50}),
    "early tools": (EARLY, {"tools": [look], "streaming_tool_dispatch": True}),
    "out of tokens": (NUMBERS * 2, {"max_total_tokens": 250, "max_tokens": 20, "max_inflight": 2}),
    "out of time": (["fine", orders({"fault": "stall", "stall_s": 30.0})], {"deadline": 2.0}),
    "agents out of time": (["fine", orders({"fault": "stall", "stall_s": 5.0})], {"timeout_per_agent": 0.2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
async def test_all_views_agree_on_a_run_and_on_its_resumptions(sim: SimServer, tmp_path: Path, name: str) -> None:
    inputs, options = RUNS[name]
    watched = Watched(tmp_path)
    for _ in range(3):
        await watched.process(of(sim, inputs, **options))


async def test_all_views_agree_on_several_endpoints(sim: SimServer, tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=8)) as other:
        await watched.process(of(sim, backend=[sim.url, other.url], tools=[look]))
    assert sum(tool["requested"] for tool in seen(tmp_path)["tools"]) == len(NUMBERS)


async def test_all_views_agree_where_agents_ran_ahead(sim: SimServer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"task": "Say it: {it}", "tools": [look]}
    await BatchAgent.plan(canary=3, inputs=NUMBERS, backend=sim.url, model="sim", checkpoint_dir=tmp_path, **options)
    watched = Watched(tmp_path)
    run = of(sim, **options)
    results = await BatchAgent.replay(tmp_path)
    watched.ahead = sum((result.usage for result in results), NO_USAGE)
    for _ in range(2):
        await watched.process(run)
    assert sum(tool["requested"] for tool in seen(tmp_path)["tools"]) == len(NUMBERS)


async def test_all_views_agree_on_a_run_that_is_cut_off_again_and_again(sim: SimServer, tmp_path: Path) -> None:
    watched, many = Watched(tmp_path), [f"number {number}" for number in range(60)]
    for cut in (10, 30):
        enough = Enough(cut)
        task = asyncio.create_task(watched.process(of(sim, many, tools=[look], max_inflight=4), enough))
        await enough.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await watched.process(of(sim, many, tools=[look]))
    assert seen(tmp_path)["state"] == "finished"


class Enough:
    """Says when so many agents are done."""

    def __init__(self, many: int) -> None:
        self.reached = asyncio.Event()
        self._left = many

    def emit(self, event: Event) -> None:
        self._left -= isinstance(event, AgentFinished)
        if self._left <= 0:
            self.reached.set()


async def test_all_views_agree_on_a_run_that_stops(sim: SimServer, tmp_path: Path) -> None:
    answers = [say("fine", Usage(10, 5, 2))] * 3

    def goes_away(request: Request) -> Reply | BackendError:
        return answers.pop() if answers else BackendError(ErrorKind.UNAVAILABLE, "Cannot connect")

    watched = Watched(tmp_path)
    backend = ScriptedBackend(goes_away, seconds=0.001)
    with pytest.raises(RunStopped):
        await watched.process(of(sim, backend=backend, max_retries=0, max_inflight=2))
    await watched.process(of(sim))


async def test_all_views_agree_on_a_flow_whose_failures_are_tried_again(sim: SimServer, tmp_path: Path) -> None:
    inputs = [*NUMBERS, orders({"fault": "500", "times": 2}), orders({"fault": "400", "times": 1})]

    async def flow(checkpoint_dir: Path, events: Any) -> FlowResult:
        steps = Flow(
            inputs,
            checkpoint_dir=checkpoint_dir,
            backend=sim.url,
            model="sim",
            prices=PRICES,
            backoff=0.01,
            max_retries=1,
        )
        steps = steps.map("draft", "Say {it}", tools=[look])
        return await steps.map("check", "Check: {draft}").reduce("sum", "Sum it up: {n}").run(events=events)

    watched = Watched(tmp_path)
    for _ in range(3):
        await watched.process(flow)
    assert [stage["started"] for stage in seen(tmp_path)["stages"]] == [10, 10, 1], "of the last reduce alone"


async def test_all_views_agree_on_a_reduce(sim: SimServer, tmp_path: Path) -> None:
    async def reduce(**watching: Any) -> Results:
        settings = {"task": "Say {it}", "inputs": NUMBERS, "backend": sim.url, "model": "sim", "prices": PRICES}
        given: dict[str, Any] = {**settings, **watching}
        results: Results = (await BatchAgent.run_with_reduce(reduce="Sum it up", tools=[look], **given))[0]
        return results

    watched = Watched(tmp_path)
    for _ in range(2):
        await watched.process(reduce)


async def test_a_replay_leaves_log_and_report_as_they_are(sim: SimServer, tmp_path: Path) -> None:
    await Watched(tmp_path).process(of(sim, tools=[look]))
    log, report = tmp_path / FILE, tmp_path / REPORT
    before = log.read_bytes(), report.read_bytes()
    await BatchAgent.replay(tmp_path)
    assert (log.read_bytes(), report.read_bytes()) == before
