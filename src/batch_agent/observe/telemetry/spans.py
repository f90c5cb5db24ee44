"""The spans of one run: of itself, of its stages, agents, turns and tool calls. Needs opentelemetry-api.

Only a span that has others in it is open while it lasts; turns and calls are told of when they are over. Nothing that
agents read or said is in them, nor what a server or a tool said of an error."""

from collections import Counter
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

from ...core.events import (
    AgentFinished,
    AgentReassigned,
    AgentStarted,
    CallsEnded,
    CallsStarted,
    Event,
    Paused,
    RequestRetried,
    Resumed,
    RunStarted,
    SchedulingReported,
    StageEvent,
    TurnEnded,
    TurnStarted,
    WorkerEvent,
)
from ...core.requests import Usage
from ...core.results import AgentResult
from . import semconv as genai

Attributes = dict[str, AttributeValue]


class RunSpans:
    """Times are seconds since the epoch."""

    def __init__(self, tracer: Tracer, parent: Context, name: str, at: float) -> None:
        """`parent`: what was under way when the run was started. `name`: of the run; empty for none."""
        self._tracer = tracer
        self._last = at
        self._run = _Group(tracer, parent, name, at)
        self._stages: dict[str, _Group] = {}
        self._is_cut = False

    def take(self, at: float, event: Event) -> None:
        self._last = at = max(at, self._last)  # a clock that is set back must not end a span before it began
        match event:
            case StageEvent(name, RunStarted() as inner):
                self._stages[name] = _Group(self._tracer, self._run.context, name, at)
                self._stages[name].take(at, inner)
            case StageEvent(name, SchedulingReported()):
                self._is_cut |= self._stages.pop(name).end(at)
            case StageEvent(name, inner):
                if name in self._stages:
                    self._stages[name].take(at, inner)
            case _:
                self._run.take(at, event)

    def end(self) -> None:
        """Whatever is still open ends with it."""
        for stage in self._stages.values():
            self._is_cut |= stage.end(self._last)
        self._run.end(self._last, is_cut=self._is_cut)


@dataclass(slots=True)
class _Turn:
    """An answer that was asked for, or tools that were called, and what came of it is not known yet."""

    number: int
    began: float
    tools: tuple[str, ...] = ()
    retries: list[tuple[float, RequestRetried]] = field(default_factory=list)


@dataclass(slots=True)
class _Agent:
    span: Span
    context: Context
    turns: dict[str, _Turn] = field(default_factory=dict)
    """By key: the parts of a long input have turns of their own."""


class _Group:
    """Agents that do the same: those of a run, or of one stage of a flow."""

    def __init__(self, tracer: Tracer, parent: Context, name: str, at: float) -> None:
        self._tracer = tracer
        self._name = name
        self._span = self._started(genai.INVOKE_WORKFLOW, name, parent, at, {genai.WORKFLOW_NAME: name} if name else {})
        self.context = set_span_in_context(self._span, parent)
        self._common: Attributes = {}
        self._agents: dict[str, _Agent] = {}
        self._outcomes: Counter[str] = Counter()

    def take(self, at: float, event: Event) -> None:
        match event:
            case WorkerEvent():
                self.take(at, event.event)
            case TurnStarted():
                agent = self._agent(event.key)
                if agent is not None and event.key not in agent.turns:  # one that is sent again goes on
                    agent.turns[event.key] = _Turn(event.turn, at)
            case TurnEnded():
                self._answered(at, event)
            case CallsStarted():
                agent = self._agent(event.key)
                if agent is not None:
                    agent.turns[event.key] = _Turn(event.turn, at, event.tools)
            case CallsEnded():
                self._returned(at, event)
            case AgentStarted():
                self._begun(at, event.key, event.index)
            case AgentReassigned():
                if event.key in self._agents:
                    self._cut_off(at, event.key, genai.MOVED)
            case AgentFinished():
                self._finished(at, event.result, is_resumed=event.resumed)
            case RequestRetried():
                agent = self._agent(event.key)
                if agent is not None and event.key in agent.turns:
                    agent.turns[event.key].retries.append((at, event))
            case RunStarted():
                self._common = {genai.PROVIDER: genai.provider(event.backend), genai.MODEL: event.model}
                self._span.set_attributes(self._common)
                if event.total is not None:
                    self._span.set_attribute(genai.INPUTS, event.total)
            case Paused():
                self._span.add_event(genai.PAUSED, {genai.SECONDS: event.seconds}, _ns(at))
            case Resumed():
                self._span.add_event(genai.GOES_ON, timestamp=_ns(at))
            case _:
                pass

    def end(self, at: float, *, is_cut: bool = False) -> bool:
        """Agents that are not done are cut off here. Whether there were any; `is_cut`: elsewhere there were."""
        is_cut = is_cut or bool(self._agents)
        if is_cut:
            _fail(self._span, genai.STOPPED)
        for key in list(self._agents):
            self._cut_off(at, key, genai.STOPPED)
        for outcome, count in self._outcomes.items():
            self._span.set_attribute(outcome, count)
        self._span.end(_ns(at))
        return is_cut

    def _begun(self, at: float, key: str, index: int) -> _Agent:
        attributes: Attributes = {genai.AGENT_ID: key, genai.CONVERSATION: key, genai.INDEX: index, **self._common}
        if self._name:
            attributes[genai.AGENT_NAME] = self._name
        span = self._started(genai.INVOKE_AGENT, self._name, self.context, at, attributes)
        agent = self._agents[key] = _Agent(span, set_span_in_context(span, self.context))
        return agent

    def _answered(self, at: float, event: TurnEnded) -> None:
        told: Attributes = {
            genai.FINISH_REASONS: [genai.finish_reason(event.finish)],
            genai.QUEUED: event.queued,
            genai.ATTEMPTS: event.attempts,
            genai.STREAM: event.ttft is not None,
            **_usage(event.usage),
        }
        if event.ttft is not None:
            told[genai.TIME_TO_FIRST_CHUNK] = event.ttft
        agent = self._agent(event.key)
        if agent is not None and (turn := agent.turns.pop(event.key, None)) is not None:
            self._chat(agent, event.key, turn, told).end(_ns(at))

    def _returned(self, at: float, event: CallsEnded) -> None:
        agent = self._agent(event.key)
        turn = None if agent is None else agent.turns.pop(event.key, None)
        if agent is None or turn is None:
            return
        began = turn.began
        for call in event.calls:
            span = self._call(agent, event.key, call.name, event.turn, began)
            span.set_attribute(genai.TOOL_SOURCE, call.source)
            if not call.ok:
                _fail(span, genai.TOOL_FAILED)
            span.end(_ns(min(at, began + call.seconds)))  # one that was started early took longer than the wait

    def _finished(self, at: float, result: AgentResult, *, is_resumed: bool) -> None:
        self._outcomes[genai.RESUMED if is_resumed else genai.ANSWERED if result.ok else genai.FAILED] += 1
        if is_resumed:
            return  # nothing was done for it
        agent = self._agents.get(result.key) or self._begun(at, result.key, result.index)
        agent.span.set_attributes(
            {genai.TURNS: result.turns, genai.TOOL_CALLS: len(result.tool_calls), **_usage(result.usage)}
        )
        if result.finish is not None:
            agent.span.set_attribute(genai.FINISH_REASONS, [genai.finish_reason(result.finish)])
        self._cut_off(at, result.key, None if result.error is None else result.error.kind.value)

    def _cut_off(self, at: float, key: str, error: str | None) -> None:
        """Ends an agent, and what it was in the middle of. `error`: why it has no answer; None if it has one."""
        agent = self._agents.pop(key)
        for part, turn in agent.turns.items():
            calls = [self._call(agent, part, tool, turn.number, turn.began) for tool in turn.tools]
            for span in calls or [self._chat(agent, part, turn, {})]:
                _fail(span, error or genai.STOPPED)
                span.end(_ns(at))
        if error is not None:
            _fail(agent.span, error)
        agent.span.end(_ns(at))

    def _chat(self, agent: _Agent, key: str, turn: _Turn, told: Attributes) -> Span:
        """As the conventions want it, one span for all tries."""
        attributes = {genai.CONVERSATION: key, genai.TURN: turn.number, **self._common, **told}
        model = str(self._common.get(genai.MODEL, ""))
        span = self._started(genai.CHAT, model, agent.context, turn.began, attributes, SpanKind.CLIENT)
        for at, retry in turn.retries:
            span.add_event(genai.RETRY, {genai.ERROR: retry.kind.value, genai.SECONDS: retry.delay}, _ns(at))
        return span

    def _call(self, agent: _Agent, key: str, tool: str, turn: int, began: float) -> Span:
        attributes: Attributes = {
            genai.TOOL_NAME: tool,
            genai.TOOL_TYPE: genai.FUNCTION,
            genai.CONVERSATION: key,
            genai.TURN: turn,
        }
        return self._started(genai.EXECUTE_TOOL, tool, agent.context, began, attributes)

    def _started(
        self,
        operation: str,
        name: str,
        parent: Context,
        at: float,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        return self._tracer.start_span(
            f"{operation} {name}" if name else operation,
            parent,
            kind,
            {genai.OPERATION: operation, **attributes},
            start_time=_ns(at),
        )

    def _agent(self, key: str) -> _Agent | None:
        """None of one that has left: another worker may be heard of after it has."""
        return self._agents.get(key) or self._agents.get(key.partition(".")[0])


def _fail(span: Span, error: str) -> None:
    span.set_attribute(genai.ERROR, error)
    span.set_status(Status(StatusCode.ERROR, error))


def _usage(usage: Usage) -> Attributes:
    return {
        genai.INPUT_TOKENS: usage.input,
        genai.CACHED_TOKENS: usage.cached,
        genai.OUTPUT_TOKENS: usage.output,
    }


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
