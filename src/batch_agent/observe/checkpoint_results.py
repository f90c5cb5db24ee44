"""Results rebuilt from a checkpoint: the configuration from its plan, and the results of its agents from their
facts."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..agent.answer_extraction import unvalidated_answer
from ..agent.context_size import chars_of_turn
from ..agent.conversation import Conversation, Done
from ..agent.output import output_type
from ..core.agent_config import AgentConfig, Job
from ..core.errors import ErrorKind
from ..core.facts import Compacted, Fact, Replied, Returned, Started, failure_of
from ..core.messages import Prompt, ToolResult, ToolSpec
from ..core.options import Retry
from ..core.requests import NO_USAGE, Sampling
from ..core.results import AgentError, AgentResult, AgentStatus, Timing
from ..core.run_reports import SharedResults
from ..core.schema import JsonSchema
from ..plan.layout import CHARS_PER_TOKEN
from ..schedule.reference_model import MAX_READERS, Reader, ReadRecorder, reader_of

DEFAULT_MAX_RETRIES = Retry().max_retries
"""Assumed if unknown: a plan does not contain max_retries, because it changes no answer."""


def recorded_config(plan: Mapping[str, Any], output_schema: Any = None, max_retries: int | None = None) -> AgentConfig:
    """The agent configuration of the run with this plan. A plan has the output schema only as JSON, so answers are
    plain data, without the conversions and defaults of the run's own type, unless `output_schema` gives that type."""
    turn, last = plan["output schema"]
    return AgentConfig(
        prompt=Prompt(plan["system prompt"], recorded_tools(plan), schema=answer_schema(plan)),
        model=plan["model"],
        sampling=recorded_sampling(plan),
        tool_mode=plan["tool mode"],
        output=output_type(answer_schema(plan) if output_schema is None else output_schema),
        turn_schema=turn,
        last_turn_schema=last,
        max_turns=plan["max_turns"],
        max_retries=DEFAULT_MAX_RETRIES if max_retries is None else max_retries,
    )


def as_sent(config: AgentConfig) -> AgentConfig:
    """The configuration with the tools that were in the requests. In action mode, the tools are part of the system
    prompt."""
    if config.tool_mode == "native":
        return config
    return replace(config, prompt=replace(config.prompt, tools=()))


def recorded_sampling(plan: Mapping[str, Any]) -> Sampling:
    sampling = dict(plan["sampling"])
    return Sampling(**{**sampling, "stop": tuple(sampling["stop"])})


def recorded_tools(plan: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools as the model saw them."""
    tools = plan["question"]["tools"]
    return tuple(ToolSpec(tool["name"], tool["description"], tool["parameters"]) for tool in tools)


def answer_schema(plan: Mapping[str, Any]) -> JsonSchema | None:
    """The schema of the answers; None for plain text."""
    schema: JsonSchema | None = plan["question"]["output schema"]
    return schema


def replay_facts(config: AgentConfig, key: str, facts: Sequence[Fact]) -> Conversation:
    """Rebuilds an agent's conversation from its facts, of which there must be at least one."""
    conversation = Conversation(config, recorded_job(key, facts))
    conversation.replay(facts)
    return conversation


def recorded_job(key: str, facts: Sequence[Fact]) -> Job:
    started = facts[0]
    assert isinstance(started, Started), "an agent's first fact is its start"
    at, images = started.references_at, started.images
    return Job(started.index, key, started.input, started.task, references_at=at, images=images)


def recorded_result(
    config: AgentConfig, key: str, facts: Sequence[Fact], *, is_complete: bool = False
) -> AgentResult | None:
    """The result of an agent; None if it has not finished. `is_complete`: all agents of the run have ended, so an agent
    that did not fail has answered, even if only the run's own type accepts the answer."""
    conversation = replay_facts(config, key, facts)
    seconds = recorded_seconds(facts)
    if (failed := failure_of(facts)) is not None:
        conversation.fail(failed.error)
        return conversation.result(max(seconds, failed.seconds))
    if isinstance(conversation.next(), Done):
        return conversation.result(seconds)
    if not is_complete or not isinstance(facts[-1], Replied):
        return None
    result, schema = conversation.result(seconds), config.prompt.schema
    return replace(result, output=unvalidated_answer(result.text, schema) if schema is not None else result.text)


_UNFINISHED = {
    ErrorKind.RUNNING: "The agent is running.",
    ErrorKind.INTERRUPTED: "The run ended before this agent did. The next run with this checkpoint continues it.",
    ErrorKind.NOT_STARTED: "The agent of this input was not started. The next run with this checkpoint starts it.",
}


def unfinished_result(kind: ErrorKind, index: int, key: str, value: Any, facts: Sequence[Fact] = ()) -> AgentResult:
    """A result for an agent that has none, with its input and its usage so far."""
    replies = [fact for fact in facts if isinstance(fact, Replied)]
    return AgentResult(
        index,
        key,
        value,
        error=AgentError(kind, _UNFINISHED[kind], retryable=True),
        usage=sum((fact.reply.usage for fact in replies), NO_USAGE),
        turns=len(replies),
        timing=Timing(total=recorded_seconds(facts)),
    )


def recorded_seconds(facts: Sequence[Fact]) -> float:
    """Total duration of an agent's turns and tool calls, without waits."""
    return sum(fact.seconds for fact in facts if isinstance(fact, Replied | Returned | Compacted))


class RecordedReads:
    """Tool results that the agents of a checkpoint read, and what placing them first saves or would save."""

    def __init__(self, shared_chars: int = 0, shared_tools: Collection[str] | None = None) -> None:
        """`shared_chars`: characters of the common beginning of all prompts. `shared_tools`: names of the tools whose
        results agents share; None if unknown, which stands for the tools that had a result shared."""
        self._recorder = ReadRecorder(shared_chars)
        self._shared_tools = set(shared_tools or ())
        self._are_known = shared_tools is not None
        self._readers: list[Reader] = []
        self._others = 0
        """Number of agents that affect only the number of agents in the report."""

    def add(self, facts: Sequence[Fact]) -> None:
        results = [result for fact in facts if isinstance(fact, Returned) for result in fact.results]
        if len(self._readers) >= MAX_READERS and all(result.reference is None for result in results):
            self._others += bool(facts)
            return
        if not facts:
            return
        if not self._are_known:
            self._shared_tools.update(each.call.name for each in results if each.source in ("shared", "cached"))
        started = facts[0]
        assert isinstance(started, Started), "an agent's first fact is its start"
        self._readers.append(reader_of(len(started.task) - started.references_at, _tool_turns(facts), None))

    def report(self) -> SharedResults | None:
        """The report. Call it once, after the last agent."""
        for reader in self._readers:
            self._recorder.add(reader.with_shared(self._shared_tools))
        for _ in range(self._others):
            self._recorder.add(None)
        return self._recorder.report(CHARS_PER_TOKEN)


def _tool_turns(facts: Iterable[Fact]) -> Iterator[tuple[int, Sequence[ToolResult]]]:
    """The results of each turn, with the size of the replies before them."""
    chars = 0
    for fact in facts:
        match fact:
            case Replied(reply):
                chars += chars_of_turn(reply)
            case Returned(results):
                yield chars, results
                chars = 0
            case _:
                pass


_MAX_SHOWN = 5


@dataclass(slots=True)
class CheckpointSummary:
    """Counts over the inputs of a checkpoint, which are added one at a time and not kept."""

    statuses: Counter[AgentStatus] = field(default_factory=Counter)
    truncated: int = 0
    """Answers that were cut at max_tokens."""
    failures: Counter[str] = field(default_factory=Counter)
    first_failures: list[tuple[int, str, AgentError]] = field(default_factory=list)
    """Index, key and error."""
    max_failures: int | None = _MAX_SHOWN
    """Maximum number of kept failures; None: all."""
    calls: Counter[str] = field(default_factory=Counter)
    """Tool calls by the source of their results."""
    failed_calls: int = 0
    reads: RecordedReads = field(default_factory=RecordedReads)
    _slowest: list[tuple[float, int, str]] = field(default_factory=list)

    @property
    def slowest(self) -> list[tuple[float, int, str]]:
        """Seconds, index and key, the slowest first."""
        return [(seconds, -before, key) for seconds, before, key in sorted(self._slowest, reverse=True)]

    def add(self, result: AgentResult, facts: Sequence[Fact]) -> None:
        """`facts`: empty if the agent was not started."""
        self.statuses[result.status] += 1
        self._count_calls(facts)
        self.reads.add(facts)
        if facts:
            heapq.heappush(self._slowest, (recorded_seconds(facts), -result.index, result.key))
        if len(self._slowest) > _MAX_SHOWN:
            heapq.heappop(self._slowest)
        self._count_result(result)

    def _count_calls(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, Returned):
                self.calls.update(result.source for result in fact.results)
                self.failed_calls += sum(result.is_error for result in fact.results)

    def _count_result(self, result: AgentResult) -> None:
        self.truncated += result.is_truncated
        if result.error is None or result.status != "failed":
            return
        self.failures[result.error.kind] += 1
        if self.max_failures is None or len(self.first_failures) < self.max_failures:
            self.first_failures.append((result.index, result.key, result.error))
