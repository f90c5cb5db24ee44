"""A backend and a toolbox that answer from what was recorded: the engine runs again, nobody is asked anything."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field

from ..core.errors import BackendError, ErrorKind
from ..core.facts import Compacted, Fact, Replied, Returned, Settled
from ..core.fast_dataclass import dataclass
from ..core.messages import ToolCall, ToolResult, ToolSpec
from ..core.protocols import CallHistory, Journal, Traits
from ..core.requests import CallDelta, Delta, Finished, ReasoningDelta, Reply, Request, TextDelta


@dataclass(frozen=True, slots=True)
class AgentRecording:
    """What one agent was told, by its turns."""

    replies: tuple[Reply, ...]
    results: Mapping[int, tuple[ToolResult, ...]]
    """By the number of replies before them."""
    compactions: Mapping[int, Compacted] = field(default_factory=dict)
    """As results are."""

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


_NOTHING = AgentRecording((), {})


class Recordings:
    """The recordings of all agents of a replay. Who plays whose is said, not found by a key: keys change with the
    prompt."""

    def __init__(self) -> None:
        self._by_agent: dict[str, AgentRecording] = {}
        self._compacted: set[tuple[str, int]] = set()

    def cue(self, agent: str, recording: AgentRecording) -> None:
        """What this agent will be told."""
        self._by_agent[agent] = recording

    def reply(self, agent: str, turn: int) -> Reply:
        """Raises BackendError for a turn that was not recorded."""
        replies = self._by_agent.get(agent, _NOTHING).replies
        if turn < len(replies):
            return replies[turn]
        raise _missing(f"turn {turn + 1} was not recorded: this agent's recording has {len(replies)} turns.")

    def compaction(self, agent: str, turn: int) -> Compacted | None:
        """What was shortened before this turn. It is given once: it is part of the conversation then."""
        if (agent, turn) in self._compacted:
            return None
        self._compacted.add((agent, turn))
        return self._by_agent.get(agent, _NOTHING).compactions.get(turn)

    def results(self, agent: str, turn: int, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """One per call. Raises BackendError for a call that was not recorded in this turn."""
        left = list(self._by_agent.get(agent, _NOTHING).results.get(turn, ()))
        return tuple(_take(left, call, turn) for call in calls)


class RecordedBackend:
    """Answers each turn with the reply that was recorded for it, whatever is asked."""

    def __init__(self, tape: Recordings, traits: Traits) -> None:
        self.traits = traits
        self._tape = tape

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        yield _deltas(self._tape.reply(request.agent, request.turn))

    async def leave(self, agent: str) -> None:
        pass

    async def aclose(self) -> None:
        pass


class RecordedToolbox:
    """Gives the results that were recorded; no tool is called."""

    may_start_early = False

    def __init__(self, tape: Recordings, specs: tuple[ToolSpec, ...]) -> None:
        self.specs = specs
        self._tape = tape

    def session(self, agent: str, journal: Journal | None = None) -> "RecordedSession":
        return RecordedSession(self._tape, agent)

    async def aclose(self) -> None:
        pass


class RecordedSession:
    def __init__(self, tape: Recordings, agent: str) -> None:
        self._tape = tape
        self._agent = agent

    def start(self, position: int, call: ToolCall) -> None:
        pass

    async def abandon(self) -> None:
        pass

    async def results(self, calls: Sequence[ToolCall], past: CallHistory | None = None) -> tuple[ToolResult, ...]:
        return self._tape.results(self._agent, past.turn if past else 0, calls)


async def _deltas(reply: Reply) -> AsyncIterator[Delta]:
    for thought in reply.thoughts:
        yield ReasoningDelta(thought.text, thought.signature, thought.redacted)
    if reply.text:
        yield TextDelta(reply.text)
    for call in reply.calls:
        yield CallDelta(call)
    yield Finished(reply.finish, reply.usage)


def _take(left: list[ToolResult], call: ToolCall, turn: int) -> ToolResult:
    """The result of this very call, or of the same one under another id."""
    same = [result for result in left if (result.call.name, result.call.arguments) == (call.name, call.arguments)]
    if not same:
        raise _missing(f"turn {turn}: the result of {call.name} {call.arguments[:200]} was not recorded.")
    found = next((result for result in same if result.call.id == call.id), same[0])
    left.remove(found)
    return found


def _missing(what: str) -> BackendError:
    return BackendError(ErrorKind.BAD_REQUEST, what)
