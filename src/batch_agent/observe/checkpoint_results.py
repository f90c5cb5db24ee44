"""Results rebuilt from a checkpoint: the configuration in its plan, and the results of its agents from their facts."""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..agent.conversation import Conversation, Done
from ..agent.output import output_type
from ..core.agent_config import AgentConfig, Job
from ..core.facts import Compacted, Fact, Replied, Returned, Started
from ..core.messages import Prompt, ToolSpec
from ..core.options import Retry
from ..core.requests import Sampling
from ..core.results import AgentError, AgentResult
from ..core.schema import JsonSchema

DEFAULT_MAX_RETRIES = Retry().max_retries
"""Assumed where it is not known: a plan does not contain max_retries, because it changes no answer."""


def recorded_config(plan: Mapping[str, Any], output_schema: Any = None, max_retries: int | None = None) -> AgentConfig:
    """The agent configuration of the run with this plan. A plan contains the output schema as JSON only: answers are
    plain data, without the conversions and defaults of the run's own type, unless that is given as `output_schema`."""
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
    """The configuration with the tools that requests had: in action mode they are part of the system prompt."""
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
    """The agent's conversation, replayed from its facts. There must be at least one."""
    conversation = Conversation(config, recorded_job(key, facts))
    conversation.replay(facts)
    return conversation


def recorded_job(key: str, facts: Sequence[Fact]) -> Job:
    started = facts[0]
    assert isinstance(started, Started), "an agent's first fact is its start"
    return Job(started.index, key, started.input, started.task)


def recorded_result(config: AgentConfig, key: str, facts: Sequence[Fact]) -> AgentResult | None:
    """The result of an agent; None if it is not finished."""
    conversation = replay_facts(config, key, facts)
    if not isinstance(conversation.next(), Done):
        return None
    return conversation.result(recorded_seconds(facts))


def recorded_seconds(facts: Sequence[Fact]) -> float:
    """Duration of an agent's turns and tool calls, without waiting."""
    return sum(fact.seconds for fact in facts if isinstance(fact, Replied | Returned | Compacted))


_MAX_SHOWN = 5


@dataclass(slots=True)
class CheckpointSummary:
    """Counts over the agents of a checkpoint, which are added one by one and not kept."""

    agents: int = 0
    answered: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    first_failures: list[tuple[int, str, AgentError]] = field(default_factory=list)
    """Index, key and error."""
    calls: Counter[str] = field(default_factory=Counter)
    """Tool calls by the source of their results."""
    failed_calls: int = 0
    _slowest: list[tuple[float, int, str]] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def in_progress(self) -> int:
        return self.agents - self.answered - self.failed

    @property
    def slowest(self) -> list[tuple[float, int, str]]:
        """Seconds, index and key, the slowest first."""
        return [(seconds, -before, key) for seconds, before, key in sorted(self._slowest, reverse=True)]

    def add(self, config: AgentConfig, index: int, key: str, facts: Sequence[Fact]) -> None:
        self.agents += 1
        self._count_calls(facts)
        heapq.heappush(self._slowest, (recorded_seconds(facts), -index, key))
        if len(self._slowest) > _MAX_SHOWN:
            heapq.heappop(self._slowest)
        result = recorded_result(config, key, facts)
        if result is not None:
            self._count_result(result)

    def _count_calls(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, Returned):
                self.calls.update(result.source for result in fact.results)
                self.failed_calls += sum(result.is_error for result in fact.results)

    def _count_result(self, result: AgentResult) -> None:
        if result.error is None:
            self.answered += 1
            return
        self.failures[result.error.kind] += 1
        if len(self.first_failures) < _MAX_SHOWN:
            self.first_failures.append((result.index, result.key, result.error))
