"""What a checkpoint tells of a run: its rules, as far as its plan describes them, and its agents' results.

What a checkpoint's agents came to, folded from their facts.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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

USUAL_RETRIES = Retry().max_retries
"""A plan does not say how often an unusable answer was asked for again: it changes no answer."""


def recorded_rules(plan: Mapping[str, Any], output_schema: Any = None, max_retries: int | None = None) -> AgentConfig:
    """The rules of the run that kept this plan. Its output schema is known as JSON only: answers are plain data, unless
    the run's own type is given, and what such a type converts, fills in or checks beyond its schema is not known."""
    turn, last = plan["output schema"]
    return AgentConfig(
        prompt=Prompt(plan["system prompt"], recorded_tools(plan)),
        model=plan["model"],
        sampling=recorded_sampling(plan),
        tool_mode=plan["tool mode"],
        output=output_type(answer_schema(plan) if output_schema is None else output_schema),
        turn_schema=turn,
        last_turn_schema=last,
        max_turns=plan["max_turns"],
        max_retries=USUAL_RETRIES if max_retries is None else max_retries,
    )


def recorded_sampling(plan: Mapping[str, Any]) -> Sampling:
    sampling = dict(plan["sampling"])
    return Sampling(**{**sampling, "stop": tuple(sampling["stop"])})


def recorded_tools(plan: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools as the model saw them."""
    tools = plan["question"]["tools"]
    return tuple(ToolSpec(tool["name"], tool["description"], tool["parameters"]) for tool in tools)


def answer_schema(plan: Mapping[str, Any]) -> JsonSchema | None:
    """What each answer had to be; None where it was the model's text."""
    schema: JsonSchema | None = plan["question"]["output schema"]
    return schema


def replay_facts(rules: AgentConfig, key: str, facts: Sequence[Fact]) -> Conversation:
    """The agent's conversation as far as it went. Other agents than those with facts have none."""
    talk = Conversation(rules, recorded_job(key, facts))
    talk.replay(facts)
    return talk


def recorded_job(key: str, facts: Sequence[Fact]) -> Job:
    started = facts[0]
    assert isinstance(started, Started), "an agent's first fact is its start"
    return Job(started.index, key, started.input, started.task)


def recorded_result(rules: AgentConfig, key: str, facts: Sequence[Fact]) -> AgentResult | None:
    """The result of an agent whose facts tell its end, or None."""
    talk = replay_facts(rules, key, facts)
    if not isinstance(talk.next(), Done):
        return None
    return talk.result(recorded_seconds(facts))


def recorded_seconds(facts: Sequence[Fact]) -> float:
    """What an agent's turns and calls took, without its waiting."""
    return sum(fact.seconds for fact in facts if isinstance(fact, Replied | Returned | Compacted))


_SHOWN = 5


@dataclass(slots=True)
class CheckpointSummary:
    """Mutable on purpose: agents are added one by one, and none of them is kept."""

    agents: int = 0
    answered: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    first_failures: list[tuple[int, str, AgentError]] = field(default_factory=list)
    """Index, key, and why."""
    calls: Counter[str] = field(default_factory=Counter)
    """Tool calls by where their results came from."""
    failed_calls: int = 0
    _slowest: list[tuple[float, int, str]] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def under_way(self) -> int:
        return self.agents - self.answered - self.failed

    @property
    def slowest(self) -> list[tuple[float, int, str]]:
        """Seconds, index and key, the slowest first."""
        return [(seconds, -before, key) for seconds, before, key in sorted(self._slowest, reverse=True)]

    def add(self, rules: AgentConfig, index: int, key: str, facts: Sequence[Fact]) -> None:
        self.agents += 1
        self._count_calls(facts)
        heapq.heappush(self._slowest, (recorded_seconds(facts), -index, key))
        if len(self._slowest) > _SHOWN:
            heapq.heappop(self._slowest)
        result = recorded_result(rules, key, facts)
        if result is not None:
            self._count_end(result)

    def _count_calls(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, Returned):
                self.calls.update(result.source for result in fact.results)
                self.failed_calls += sum(result.is_error for result in fact.results)

    def _count_end(self, result: AgentResult) -> None:
        if result.error is None:
            self.answered += 1
            return
        self.failures[result.error.kind] += 1
        if len(self.first_failures) < _SHOWN:
            self.first_failures.append((result.index, result.key, result.error))
