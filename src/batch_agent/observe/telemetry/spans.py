"""Spans of a run, its stages, agents, turns and tool calls. Needs opentelemetry-api.

Only spans with children are open while they last; spans of turns and calls are created when they end. Error messages
are not exported. Prompts, answers, tool arguments and results are exported only by `RunContents`."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest

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
from ...core.run_reports import RunDescription
from ...plan.row_keys import row_key
from . import semconv as genai
from .message_content import RunContents

Attributes = dict[str, AttributeValue]


class RunSpans:
    """Spans of one run, from its events. Times are seconds since the epoch."""

    def __init__(
        self, tracer: Tracer, parent: Context, name: str, at: float, contents: RunContents | None = None
    ) -> None:
        """`parent`: context in which the run was started. `name`: name of the run, may be empty. `contents`: None if
        they are not exported."""
        self._tracer = tracer
        self._last = at
        self._contents = contents
        self._run = _Group(tracer, parent, name, at, contents)
        self._stages: dict[str, _Group] = {}
        self._is_cut = False

    def take(self, at: float, event: Event) -> None:
        self._last = at = max(at, self._last)  # no span ends before its start, even if the clock is set back
        match event:
            case StageEvent(name, RunStarted() as inner):
                self._stages[name] = _Group(self._tracer, self._run.context, name, at, self._contents, name)
                self._stages[name].take(at, inner)
            case StageEvent(name, SchedulingReported()):
                self._is_cut |= self._stages.pop(name).end(at)
            case StageEvent(name, inner):
                if name in self._stages:
                    self._stages[name].take(at, inner)
            case _:
                self._run.take(at, event)

    def end(self) -> None:
        """Ends all open spans."""
        for stage in self._stages.values():
            self._is_cut |= stage.end(self._last)
        self._run.end(self._last, is_cut=self._is_cut)


@dataclass(slots=True)
class _Turn:
    """A turn or a set of tool calls in progress."""

    number: int
    began: float
    tools: tuple[str, ...] = ()
    retries: list[tuple[float, RequestRetried]] = field(default_factory=list)


@dataclass(slots=True)
class _Agent:
    span: Span
    context: Context
    turns: dict[str, _Turn] = field(default_factory=dict)
    """Turns by key, because chunks of a long input have their own."""


class _Group:
    """Spans of the agents of a run, or of one stage of a flow."""

    def __init__(
        self, tracer: Tracer, parent: Context, name: str, at: float, contents: RunContents | None, stage: str = ""
    ) -> None:
        self._tracer = tracer
        self._name = name
        self._contents = contents
        self._stage = stage
        self._span = self._start_span(
            genai.INVOKE_WORKFLOW, name, parent, at, {genai.WORKFLOW_NAME: name} if name else {}
        )
        self.context = set_span_in_context(self._span, parent)
        self._common: Attributes = {}
        self._description: RunDescription | None = None
        self._agents: dict[str, _Agent] = {}
        self._outcomes: Counter[str] = Counter()

    def take(self, at: float, event: Event) -> None:
        match event:
            case WorkerEvent():
                self.take(at, event.event)
            case TurnStarted():
                agent = self._agent(event.key)
                if agent is not None and event.key not in agent.turns:  # a retried request belongs to the same turn
                    agent.turns[event.key] = _Turn(event.turn, at)
            case TurnEnded():
                self._end_turn(at, event)
            case CallsStarted():
                agent = self._agent(event.key)
                if agent is not None:
                    agent.turns[event.key] = _Turn(event.turn, at, event.tools)
            case CallsEnded():
                self._end_calls(at, event)
            case AgentStarted():
                self._start_agent(at, event.key, event.index)
            case AgentReassigned():
                if event.key in self._agents:
                    self._end_agent(at, event.key, genai.REASSIGNED)
            case AgentFinished():
                self._finish_agent(at, event.result, is_resumed=event.resumed)
            case RequestRetried():
                agent = self._agent(event.key)
                if agent is not None and event.key in agent.turns:
                    agent.turns[event.key].retries.append((at, event))
            case RunStarted():
                self._common = {genai.PROVIDER: genai.provider(event.backend), genai.MODEL: event.model}
                self._description = event.description
                self._span.set_attributes(self._common)
                if event.total is not None:
                    self._span.set_attribute(genai.INPUTS, event.total)
            case Paused():
                self._span.add_event(genai.PAUSED, {genai.SECONDS: event.seconds}, _ns(at))
            case Resumed():
                self._span.add_event(genai.PAUSE_ENDED, timestamp=_ns(at))
            case _:
                pass

    def end(self, at: float, *, is_cut: bool = False) -> bool:
        """Ends the span and the spans of unfinished agents. Returns whether there were any, here or elsewhere
        (`is_cut`)."""
        is_cut = is_cut or bool(self._agents)
        if is_cut:
            _fail(self._span, genai.STOPPED)
        for key in list(self._agents):
            self._end_agent(at, key, genai.STOPPED)
        for outcome, count in self._outcomes.items():
            self._span.set_attribute(outcome, count)
        if self._contents is not None:
            self._span.set_attributes(self._contents.run(self._description))
        self._span.end(_ns(at))
        return is_cut

    def _start_agent(self, at: float, key: str, index: int) -> _Agent:
        shown = row_key(key)
        attributes: Attributes = {genai.AGENT_ID: shown, genai.CONVERSATION: shown, genai.INDEX: index, **self._common}
        if self._name:
            attributes[genai.AGENT_NAME] = self._name
        span = self._start_span(genai.INVOKE_AGENT, self._name, self.context, at, attributes)
        agent = self._agents[key] = _Agent(span, set_span_in_context(span, self.context))
        return agent

    def _end_turn(self, at: float, event: TurnEnded) -> None:
        attributes: Attributes = {
            genai.FINISH_REASONS: [genai.finish_reason(event.finish)],
            genai.QUEUED: event.queued,
            genai.ATTEMPTS: event.attempts,
            genai.STREAM: event.ttft is not None,
            **_usage(event.usage),
        }
        if event.ttft is not None:
            attributes[genai.TIME_TO_FIRST_CHUNK] = event.ttft
        agent = self._agent(event.key)
        if agent is not None and (turn := agent.turns.pop(event.key, None)) is not None:
            span = self._chat(agent, event.key, turn, attributes)
            if self._contents is not None and event.reply is not None:
                span.set_attributes(self._contents.reply(event.reply))
            span.end(_ns(at))

    def _end_calls(self, at: float, event: CallsEnded) -> None:
        agent = self._agent(event.key)
        turn = None if agent is None else agent.turns.pop(event.key, None)
        if agent is None or turn is None:
            return
        began = turn.began
        for call, result in zip_longest(event.calls, event.results):
            span = self._call(agent, event.key, call.name, event.turn, began)
            span.set_attribute(genai.TOOL_SOURCE, call.source)
            if self._contents is not None and result is not None:
                span.set_attributes(self._contents.call(call.arguments, result))
            if not call.ok:
                _fail(span, genai.TOOL_FAILED)
            span.end(
                _ns(min(at, began + call.seconds))
            )  # a call that was started early may take longer than the agent waited

    def _finish_agent(self, at: float, result: AgentResult, *, is_resumed: bool) -> None:
        self._outcomes[genai.RESUMED if is_resumed else genai.ANSWERED if result.ok else genai.FAILED] += 1
        if is_resumed:
            return  # no work was done for it
        agent = self._agents.get(result.key) or self._start_agent(at, result.key, result.index)
        agent.span.set_attributes(
            {genai.TURNS: result.turns, genai.TOOL_CALLS: len(result.tool_calls), **_usage(result.usage)}
        )
        if self._contents is not None:
            agent.span.set_attributes(self._contents.agent(result))
        if result.finish is not None:
            agent.span.set_attribute(genai.FINISH_REASONS, [genai.finish_reason(result.finish)])
        self._end_agent(at, result.key, None if result.error is None else result.error.kind.value)

    def _end_agent(self, at: float, key: str, error: str | None) -> None:
        """Ends the span of an agent, and of its turn or calls in progress. `error`: None if it has an answer."""
        agent = self._agents.pop(key)
        for part, turn in agent.turns.items():
            calls = [self._call(agent, part, tool, turn.number, turn.began) for tool in turn.tools]
            for span in calls or [self._chat(agent, part, turn, {})]:
                _fail(span, error or genai.STOPPED)
                span.end(_ns(at))
        if error is not None:
            _fail(agent.span, error)
        agent.span.end(_ns(at))

    def _chat(self, agent: _Agent, key: str, turn: _Turn, more: Attributes) -> Span:
        """Creates one span for all attempts, as the conventions require."""
        attributes = {genai.CONVERSATION: row_key(key), genai.TURN: turn.number, **self._common, **more}
        if self._contents is not None:
            attributes |= self._contents.request(self._stage, key, turn.number)
        model = str(self._common.get(genai.MODEL, ""))
        span = self._start_span(genai.CHAT, model, agent.context, turn.began, attributes, SpanKind.CLIENT)
        for at, retry in turn.retries:
            span.add_event(genai.RETRY, {genai.ERROR: retry.kind.value, genai.SECONDS: retry.delay}, _ns(at))
        return span

    def _call(self, agent: _Agent, key: str, tool: str, turn: int, began: float) -> Span:
        attributes: Attributes = {
            genai.TOOL_NAME: tool,
            genai.TOOL_TYPE: genai.FUNCTION,
            genai.CONVERSATION: row_key(key),
            genai.TURN: turn,
        }
        return self._start_span(genai.EXECUTE_TOOL, tool, agent.context, began, attributes)

    def _start_span(
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
        """The agent with this key; None if it has ended, because events of another worker may arrive late."""
        return self._agents.get(key) or self._agents.get(key.partition(".")[0])


def _fail(span: Span, error: str) -> None:
    span.set_attribute(genai.ERROR, error)
    span.set_status(Status(StatusCode.ERROR, error))


def _usage(usage: Usage) -> Attributes:
    return {
        genai.INPUT_TOKENS: usage.input,
        genai.CACHED_TOKENS: usage.cached,
        genai.WRITTEN_TOKENS: usage.all_written,
        genai.OUTPUT_TOKENS: usage.output,
    }


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
