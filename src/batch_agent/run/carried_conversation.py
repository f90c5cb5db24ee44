"""Conversations that agents carry to another backend, where `fallback=` continues them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from ..agent.conversation import Conversation, Done
from ..core.agent_config import AgentConfig, Job, SampleId, sample_of
from ..core.facts import (
    CarriedOver,
    Claimed,
    Compacted,
    Fact,
    Failed,
    Replied,
    Returned,
    Sampled,
    Settled,
    Started,
    Withdrawn,
    calls_made,
)
from ..core.fast_dataclass import dataclass
from ..core.messages import ToolCall, ToolResult
from ..core.protocols.store import Prices, Store
from ..core.requests import NO_USAGE, Reply
from ..core.results import AgentError

_SIGNED_CALLS = frozenset({"gemini"})
"""Services that accept tool calls in a conversation only with their own signature."""


@dataclass(frozen=True, slots=True)
class LeftConversation:
    """Work of an agent on a backend that did not finish it."""

    config: AgentConfig
    facts: Sequence[Fact]

    @property
    def has_turns(self) -> bool:
        return any(isinstance(fact, Replied) for fact in self.facts)

    def facts_for(self, config: AgentConfig, service: str, job: Job) -> tuple[Fact, ...]:
        """The facts with which an agent continues on another backend: its messages, without the thoughts, token ids,
        usage and call ids of the first one. Empty if it has to start again."""
        facts = [fact for fact in self.facts if not isinstance(fact, Failed | Sampled)]
        if not facts or not isinstance(facts[0], Started) or facts[0].task != job.task:
            return ()
        if config.tool_mode != self.config.tool_mode or any(isinstance(fact, Compacted) for fact in facts):
            return ()
        if service in _SIGNED_CALLS and any(isinstance(fact, Replied) and fact.reply.calls for fact in facts):
            return ()
        renamed = _Calls()
        carried = [renamed.fact(fact) for fact in facts]
        while carried and _has_ended(config, job, carried):  # by an answer that the first model refused to give
            last = max((at for at, fact in enumerate(carried) if isinstance(fact, Replied)), default=0)
            carried = carried[:last]
        return tuple(carried) if any(isinstance(fact, Replied) for fact in carried) else ()

    def facts_of_restart(self, job: Job) -> tuple[Fact, ...]:
        """The facts with which an agent starts again: calls that changed something are not made a second time."""
        made = calls_made(self.facts)
        return (Started.of(job), CarriedOver(made)) if made else ()


def _has_ended(config: AgentConfig, job: Job, facts: Sequence[Fact]) -> bool:
    conversation = Conversation(config, job)
    conversation.replay(facts)
    return isinstance(conversation.next(), Done)


class _Calls:
    """New ids for calls, in the form that every service accepts: nine letters and digits, as Mistral requires."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def fact(self, fact: Fact) -> Fact:
        match fact:
            case Replied(reply):
                calls = tuple(map(self._call, reply.calls))
                return Replied(Reply(reply.text, reply.finish, NO_USAGE, calls), cut_at=fact.cut_at)
            case Returned(results):
                return Returned(self._results(results))
            case CarriedOver(results):
                return CarriedOver(self._results(results))
            case Claimed(call):
                return Claimed(self._call(call))
            case Withdrawn(call):
                return Withdrawn(self._call(call))
            case Settled(result):
                [settled] = self._results((result,))
                return Settled(settled)
            case _:
                return fact

    def _call(self, call: ToolCall) -> ToolCall:
        renamed = self._ids.setdefault(call.id, f"call{len(self._ids) + 1:05d}")
        return replace(call, id=renamed)

    def _results(self, results: Sequence[ToolResult]) -> tuple[ToolResult, ...]:
        return tuple(replace(result, call=self._call(result.call)) for result in results)


class CarryingStore:
    """Store for one of several backends of a run. An agent that is new to it begins with the facts that it carries from
    another backend. Without a checkpoint, facts are kept until the agent is forgotten, for the next backend."""

    def __init__(self, store: Store, brought: Callable[[str], Awaitable[Sequence[Fact]]]) -> None:
        """`brought`: returns the facts that the agent with this key carries from another backend."""
        self._store = store
        self._brought = brought
        self._kept: dict[str, list[Fact]] | None = None if store.is_durable else {}
        self._keys: dict[SampleId, str] = {}
        """Keys of the agents of this run."""
        self.is_durable = store.is_durable
        self.open, self.aclose, self.settle = store.open, store.aclose, store.settle
        self.plan, self.save_plan, self.identity = store.plan, store.save_plan, store.identity
        self.spent, self.account, self.save_account = store.spent, store.account, store.save_account

    def save_run(self, inputs: Sequence[Any], prices: Prices | None) -> None:
        self._store.save_run(inputs, prices)

    def reject(self, index: int, value: Any, error: AgentError) -> None:
        self._store.reject(index, value, error)

    async def facts(self, key: str) -> Sequence[Fact]:
        found = await self._store.facts(key) if self._kept is None else self._kept.get(key, ())
        if not found and (brought := await self._brought(key)):
            self.restart(key, brought)
            return brought
        self._learn(key, found[:1])
        return found

    async def facts_of(self, agent: SampleId) -> Sequence[Fact]:
        """Facts of an agent; empty if it was not started in this run."""
        return await self.facts(self._keys[agent]) if agent in self._keys else ()

    def record(self, key: str, fact: Fact) -> None:
        self._store.record(key, fact)
        self._learn(key, (fact,))
        if self._kept is not None:
            self._kept.setdefault(key, []).append(fact)

    def restart(self, key: str, facts: Sequence[Fact]) -> None:
        self._store.restart(key, facts)
        self._learn(key, facts[:1])
        if self._kept is not None:
            self._kept[key] = list(facts)

    def forget(self, agent: SampleId) -> None:
        """Frees the memory of an agent that no other backend will run."""
        key = self._keys.pop(agent, None)
        if self._kept is not None and key is not None:
            self._kept.pop(key, None)

    def _learn(self, key: str, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, Started):
                self._keys[fact.index, sample_of(key)] = key
