"""Recorded backend and tools: a replay runs the engine on recorded replies and results, without server or tools."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field

from ..core.agent_config import Job
from ..core.errors import BackendError, ErrorKind
from ..core.facts import Compacted, Fact, Replied, Returned, Settled
from ..core.fast_dataclass import dataclass
from ..core.messages import ToolCall, ToolResult, ToolSpec
from ..core.protocols.backend import Traits
from ..core.protocols.tool_set import CallHistory, Journal
from ..core.requests import CallDelta, Delta, Finished, ReasoningDelta, Reply, Request, TextDelta


@dataclass(frozen=True, slots=True)
class AgentRecording:
    """Recorded replies and results of one agent, by turn."""

    replies: tuple[Reply, ...]
    results: Mapping[int, tuple[ToolResult, ...]]
    """Results by the number of replies before them."""
    compactions: Mapping[int, Compacted] = field(default_factory=dict)
    """Compactions by the number of replies before them."""

    @classmethod
    def of(cls, facts: Sequence[Fact]) -> "AgentRecording":
        replies: list[Reply] = []
        results: dict[int, tuple[ToolResult, ...]] = {}
        compactions: dict[int, Compacted] = {}
        for fact in facts:
            match fact:
                case Replied(reply):
                    replies.append(reply)
                case Settled(result):
                    results[len(replies)] = (*results.get(len(replies), ()), result)
                case Returned(whole):
                    results[len(replies)] = whole
                case Compacted():
                    compactions[len(replies)] = fact
                case _:
                    pass
        return cls(tuple(replies), results, compactions)


_EMPTY = AgentRecording((), {})


class Recordings:
    """Recordings of all agents of a replay. They are assigned explicitly, because keys change with the prompt."""

    def __init__(self) -> None:
        self._by_agent: dict[str, AgentRecording] = {}
        self._compacted: set[tuple[str, int]] = set()

    def add(self, agent: str, recording: AgentRecording) -> None:
        """Assigns a recording to an agent."""
        self._by_agent[agent] = recording

    def reply(self, agent: str, turn: int) -> Reply:
        """Raises BackendError for a turn that was not recorded."""
        replies = self._by_agent.get(agent, _EMPTY).replies
        if turn < len(replies):
            return replies[turn]
        raise _missing(f"turn {turn + 1} was not recorded: this agent's recording has {len(replies)} turns.")

    def compaction(self, agent: str, turn: int) -> Compacted | None:
        """Takes the compaction before this turn; afterwards it is part of the conversation."""
        if (agent, turn) in self._compacted:
            return None
        self._compacted.add((agent, turn))
        return self._by_agent.get(agent, _EMPTY).compactions.get(turn)

    def results(self, agent: str, turn: int, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """One result per call. Raises BackendError for a call that was not recorded in this turn."""
        left = list(self._by_agent.get(agent, _EMPTY).results.get(turn, ()))
        return tuple(_take(left, call, turn) for call in calls)


class RecordedBackend:
    """Backend that answers each turn with its recorded reply, whatever the request is."""

    def __init__(self, recordings: Recordings, traits: Traits) -> None:
        self.traits = traits
        self._recordings = recordings

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        yield _deltas(self._recordings.reply(request.agent, request.turn))

    async def leave(self, agent: str) -> None:
        pass

    async def aclose(self) -> None:
        pass


class RecordedTools:
    """Tool set that returns recorded results and calls no tool."""

    may_start_early = False

    def __init__(self, recordings: Recordings, specs: tuple[ToolSpec, ...]) -> None:
        self.specs = specs
        self._recordings = recordings

    def session(self, agent: str, journal: Journal | None = None, job: Job | None = None) -> "RecordedSession":
        return RecordedSession(self._recordings, agent)

    def recall(self, facts: Sequence[Fact]) -> None:
        pass  # recorded results have their places

    async def aclose(self) -> None:
        pass


class RecordedSession:
    """Tool session of one agent in a replay."""

    def __init__(self, recordings: Recordings, agent: str) -> None:
        self._recordings = recordings
        self._agent = agent

    def start(self, position: int, call: ToolCall) -> None:
        pass

    async def abandon(self) -> None:
        pass

    async def results(self, calls: Sequence[ToolCall], past: CallHistory | None = None) -> tuple[ToolResult, ...]:
        return self._recordings.results(self._agent, past.turn if past else 0, calls)

    def expected_readers(self, path: Sequence[str]) -> float:
        return 1.0  # recorded results have their places


async def _deltas(reply: Reply) -> AsyncIterator[Delta]:
    for thought in reply.thoughts:
        yield ReasoningDelta(thought.text, thought.signature, thought.redacted)
    if reply.text:
        yield TextDelta(reply.text)
    for call in reply.calls:
        yield CallDelta(call)
    yield Finished(reply.finish, reply.usage)


def _take(left: list[ToolResult], call: ToolCall, turn: int) -> ToolResult:
    """The result of this call, or of an equal call with another id."""
    same = [result for result in left if (result.call.name, result.call.arguments) == (call.name, call.arguments)]
    if not same:
        raise _missing(f"turn {turn}: the result of {call.name} {call.arguments[:200]} was not recorded.")
    found = next((result for result in same if result.call.id == call.id), same[0])
    left.remove(found)
    return found


def _missing(what: str) -> BackendError:
    return BackendError(ErrorKind.BAD_REQUEST, what)
