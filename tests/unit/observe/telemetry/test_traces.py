"""A run as OpenTelemetry spans: real runs on the simulated engine, through the real SDK."""

import asyncio
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from batch_agent import BatchAgent, Flow, Results, SpecError, Tool
from batch_agent.cli.options.observability import telemetry_sinks
from batch_agent.core.events import AgentFinished, AgentStarted, Notice, Paused, Resumed, RunStarted
from batch_agent.core.results import AgentResult
from batch_agent.observe.telemetry import semconv as genai
from batch_agent.observe.telemetry.traces import Traces
from batch_agent.sim import Script, SimConfig, SimServer

_OURS = r"(?:gen_ai|batch_agent|error|server|openinference|input|output)\."
DOCS = Path(__file__).parents[4] / "docs"
SECRET = "the word that nobody may tell"
REFUSED = 'no [[sim: {"fault": "400"}]]'
AGAIN = 'again [[sim: {"fault": "500", "times": 1}]]'


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True, max_model_len=1_200), Script(answer_tokens=8)) as server:
        yield server


class Told:
    """A provider of tracers, and all spans that have ended."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._memory))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._memory.get_finished_spans())

    def named(self, beginning: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name.startswith(beginning)]

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        if span.parent is None:
            return None
        [found] = [each for each in self.spans if each.get_span_context() == span.parent]
        return found

    def below(self, span: ReadableSpan) -> list[ReadableSpan]:
        return [each for each in self.spans if each.parent == span.get_span_context()]

    def check(self) -> None:
        """Every span lies inside the one above it, which has ended too."""
        for span in self.spans:
            assert span.start_time is not None
            assert span.end_time is not None
            assert span.start_time <= span.end_time
            above = self.parent(span)
            if above is not None:
                assert above.start_time is not None
                assert above.end_time is not None
                assert above.start_time <= span.start_time <= span.end_time <= above.end_time


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def error(span: ReadableSpan) -> Any:
    return said(span).get("error.type") if not span.status.is_ok and span.status.status_code.name == "ERROR" else None


@Tool.define(effect="pure")
async def look(key: str) -> str:
    """Look something up."""
    return f"about {key}: {SECRET}"


@Tool.define
async def fail(key: str) -> str:
    """Never works."""
    raise ValueError(SECRET)


async def run(sim: SimServer, *watched_by: Any, **options: Any) -> Results:
    options = {"task": "Describe {it}", "tools": [look, fail], "streaming": True, **options}
    results: Results = await BatchAgent.run(backend=sim.url, model="sim", events=list(watched_by), **options)
    return results


async def test_a_run_is_a_tree_of_agents_turns_and_calls(sim: SimServer) -> None:
    told = Told()
    results = await run(sim, Traces(told.provider, "triage"), inputs=[f"thing {n}" for n in range(6)])
    told.check()
    [root] = told.named("invoke_workflow")
    assert root.name == "invoke_workflow triage"
    assert root.parent is None
    assert said(root) == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "triage",
        "gen_ai.provider.name": "sim",
        "gen_ai.request.model": "sim",
        "batch_agent.inputs": 6,
        "batch_agent.answered": 6,
    }
    agents = {said(span)["gen_ai.agent.id"]: span for span in told.below(root)}
    assert len(agents) == len(results) == 6
    for result in results:
        agent = agents[result.key]
        assert agent.name == "invoke_agent triage"
        assert said(agent)["batch_agent.index"] == result.index
        assert said(agent)["gen_ai.usage.input_tokens"] == result.usage.input
        assert said(agent)["gen_ai.usage.output_tokens"] == result.usage.output
        kinds = Counter(span.name for span in told.below(agent))
        assert kinds == {"chat sim": result.turns, "execute_tool look": len(result.tool_calls)}
        turns = [span for span in told.below(agent) if span.name == "chat sim"]
        assert sum(said(turn)["gen_ai.usage.cache_read.input_tokens"] for turn in turns) == result.usage.cached
        assert [said(turn)["gen_ai.response.time_to_first_chunk"] for turn in turns] == list(result.timing.ttft)
        assert {turn.kind for turn in turns} == {SpanKind.CLIENT}
        assert [said(turn)["gen_ai.response.finish_reasons"] for turn in turns] == [("tool_call",), ("stop",)]
    sources = Counter(said(span)["batch_agent.tool.source"] for span in told.named("execute_tool"))
    assert sources == Counter(call.source for result in results for call in result.tool_calls)


async def test_failures_and_retries_are_traced_without_contents(sim: SimServer) -> None:
    told = Told()
    calls = f'{SECRET} [[sim: {{"calls": [{{"name": "fail", "arguments": {{"key": "x"}}}}]}}]]'
    await run(sim, Traces(told.provider), inputs=[f"{SECRET} {REFUSED}", AGAIN, calls], system_prompt=SECRET)
    told.check()
    [root] = told.named("invoke_workflow")
    assert root.name == "invoke_workflow"
    assert (said(root)["batch_agent.answered"], said(root)["batch_agent.failed"], error(root)) == (2, 1, None)
    refused, again, called = sorted(told.named("invoke_agent"), key=lambda span: said(span)["batch_agent.index"])
    assert [error(span) for span in (refused, again, called)] == ["bad_request", None, None]
    assert [error(span) for span in told.below(refused)] == ["bad_request"]
    assert [error(span) for span in told.below(called)] == [None, "tool_error", None]
    retried = [span for span in told.below(again) if span.events]
    assert [said(span)["batch_agent.attempts"] for span in retried] == [2]
    [retry] = retried[0].events
    assert retry.name == "batch_agent.retry"
    assert retry.attributes is not None
    assert retry.attributes["error.type"] == "server"
    assert retried[0].start_time is not None
    assert retry.timestamp > retried[0].start_time  # the span holds all tries
    assert SECRET not in "".join(span.to_json() for span in told.spans)


async def test_results_from_the_checkpoint_have_no_span(sim: SimServer, tmp_path: Path) -> None:
    for expected in ({"batch_agent.answered": 2}, {"batch_agent.resumed": 2}):
        told = Told()
        await run(sim, Traces(told.provider), inputs=["a", "b"], checkpoint_dir=tmp_path)
        [root] = told.named("invoke_workflow")
        assert expected.items() <= said(root).items()
        assert len(told.named("invoke_agent")) == expected.get("batch_agent.answered", 0)


async def test_the_run_belongs_to_what_was_under_way_where_it_was_started(sim: SimServer) -> None:
    told = Told()
    mine = told.provider.get_tracer("mine")
    with mine.start_as_current_span("job"):
        await run(sim, Traces(told.provider), inputs=["a"])
    with mine.start_as_current_span("no job"):
        outside = Traces(told.provider)
    with mine.start_as_current_span("other job"):
        outside.take(0.0, Notice("begins"))
        outside.close()
    names = [above.name for span in told.named("invoke_workflow") if (above := told.parent(span)) is not None]
    assert names == ["job", "other job"]


async def test_stages_of_a_flow_have_spans_of_their_own(sim: SimServer) -> None:
    told = Told()
    flow = Flow([{"it": n} for n in range(3)], backend=sim.url, model="sim").map("each", "See {it}")
    await flow.reduce("all", "Join {n}.").run(events=[Traces(told.provider)])
    told.check()
    [root] = [span for span in told.spans if span.parent is None]
    stages = {span.name: Counter(agent.name for agent in told.below(span)) for span in told.below(root)}
    assert stages == {"invoke_workflow each": {"invoke_agent each": 3}, "invoke_workflow all": {"invoke_agent all": 1}}


async def test_the_parts_of_a_long_input_belong_to_its_agent(sim: SimServer) -> None:
    told = Told()
    text = "word " * 1_500
    [result] = await run(sim, Traces(told.provider), inputs=[text], tools=[], oversized="chunk")
    told.check()
    [agent] = told.named("invoke_agent")
    assert len(told.below(agent)) == result.turns > 2
    assert len({said(span)["gen_ai.conversation.id"] for span in told.below(agent)}) == result.turns


async def test_spans_that_are_open_end_with_a_run_that_is_left(sim: SimServer) -> None:
    told, both = Told(), asyncio.Barrier(3)

    @Tool.define
    async def hang(key: str) -> str:
        """Never comes back."""
        await both.wait()
        await asyncio.Event().wait()
        return key

    stream = BatchAgent.stream(
        task="{it}", inputs=["a", "b"], tools=[hang], backend=sim.url, model="sim", events=[Traces(told.provider)]
    )
    async with stream:
        await both.wait()
    told.check()
    [root] = told.named("invoke_workflow")
    assert [error(span) for span in (root, *told.below(root))] == ["stopped"] * 3
    assert [error(span) for span in told.named("execute_tool hang")] == ["stopped"] * 2
    assert [error(span) for span in told.named("chat")] == [None, None]


@pytest.mark.parametrize("is_one", [True, False], ids=["one object", "one each"])
async def test_two_runs_at_once_are_two_traces(sim: SimServer, is_one: bool) -> None:
    told = Told()
    one = Traces(told.provider)
    both = (run(sim, one if is_one else Traces(told.provider), inputs=["same", "other"]) for _ in range(2))
    await asyncio.gather(*both)
    told.check()
    by_trace = Counter(span.get_span_context().trace_id for span in told.named("invoke_agent"))  # type: ignore[union-attr]
    assert list(by_trace.values()) == [2, 2]


async def test_a_collector_that_fails_does_no_harm(sim: SimServer, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise OSError("the disk is full")

    provider = TracerProvider()
    provider.add_span_processor(Broken())
    results = await run(sim, Traces(provider), inputs=["a", "b"])
    assert all(result.ok for result in results)
    assert "The event sink Traces failed and gets no more events" in caplog.text


def test_pauses_are_events_of_the_run() -> None:
    told = Told()
    traces = Traces(told.provider)
    traces.take(0.0, Notice("begins"))
    traces.take(1.0, Paused(3.0, SECRET))
    traces.take(2.0, Resumed())
    traces.close()
    [root] = told.spans
    assert [(event.name, event.timestamp) for event in root.events] == [
        ("batch_agent.paused", 1_000_000_000),
        ("batch_agent.pause_ended", 2_000_000_000),
    ]
    assert SECRET not in root.to_json()


def test_the_docs_name_every_attribute() -> None:
    told = set(re.findall(rf"`({_OURS}[\w.]+)`", (DOCS / "metrics.md").read_text()))
    ours = {
        value
        for name, value in vars(genai).items()
        if name.isupper() and isinstance(value, str) and re.match(_OURS, value)
    }
    assert told == ours


def test_a_clock_that_is_set_back_does_not_end_a_span_before_it_began() -> None:
    told = Told()
    traces = Traces(told.provider)
    traces.take(100.0, RunStarted("sim", "sim", 1, 1))
    traces.take(101.0, AgentStarted("a", 0))
    traces.take(40.0, AgentFinished(AgentResult(0, "a"), resumed=False))
    traces.close()
    told.check()
    assert [span.end_time for span in told.spans] == [101_000_000_000] * 2


def test_without_opentelemetry_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SpecError, match=r"pip install .*opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"):
        telemetry_sinks(None, traces=True)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SpecError, match="opentelemetry-sdk"):
        telemetry_sinks(None, traces=True)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(SpecError, match=re.escape("pip install 'batch-agent[otel]'")):
        Traces()


async def test_the_command_line_sends_them_where_the_environment_says(
    sim: SimServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly")
        sinks = telemetry_sinks(None, traces=True)
        await run(sim, *sinks, inputs=["a", "b"])
    [resource] = [each for request in collector.requests for each in request.resource_spans]
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"] == "nightly"
    [scope] = resource.scope_spans
    assert scope.scope.name == "batch_agent"
    names = Counter(span.name for span in scope.spans)
    assert names == {"invoke_workflow": 1, "invoke_agent": 2, "chat sim": 4, "execute_tool look": 2}
    assert len({span.trace_id for span in scope.spans}) == 1


async def test_the_command_line_sends_contents_if_asked(sim: SimServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        await run(sim, *telemetry_sinks(None, traces=False, content=True), inputs=["a"])
    [resource] = [each for request in collector.requests for each in request.resource_spans]
    [scope] = resource.scope_spans
    found = {each.key for span in scope.spans for each in span.attributes}
    assert {genai.INPUT_MESSAGES, genai.OUTPUT_MESSAGES, genai.CALL_RESULT, genai.SERVER_ADDRESS} <= found


class Collector:
    """Takes OTLP over HTTP, in a thread of its own: a run's last spans are sent while its loop waits."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Collector":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._over.wait()
        await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.requests.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(content_type="application/x-protobuf")
