"""Model of prompts with references: what a server with a large prefix cache computes if results that several agents
read stand behind their calls, and if they stand before the agents' own text."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from ..core.fast_dataclass import dataclass
from ..core.messages import Placement, ToolResult
from ..core.run_reports import SharedResults
from .reference_tree import Path, ReadPaths, ReferenceTree, SizedReference

MIN_SHARE = 0.1
"""Least share of the computed tokens from which advice to put results first is given."""
MIN_CHARS = 200
"""Shorter results stand behind their calls."""
MAX_READERS = 100
"""Agents that a report is computed from; the rest are assumed to be like them."""


@dataclass(frozen=True, slots=True)
class Read:
    """A result that other agents may read too."""

    heading: str
    """The same for all calls that share a result."""
    size: float
    """Tokens, or characters: the same unit for everything in a model."""
    placement: Placement = "auto"
    """As recorded; "auto": the model decides, as a run with shared_results="auto" does."""
    rank: int | None = None
    """As recorded; None: in the order in which the model's agents read."""


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A turn with tool calls."""

    reply: float
    """Size of the model's reply."""
    inline: float = 0.0
    """Size of the results that cannot be placed first."""
    reads: tuple[Read, ...] = ()


@dataclass(frozen=True, slots=True)
class Reader:
    """One agent: its own part of the task, and its turns with tool calls."""

    own: float
    turns: tuple[ReadTurn, ...]

    def with_shared(self, tools: Container[str]) -> "Reader":
        """With the results of other tools behind their calls. Those that have a recorded placement stay."""
        return replace(self, turns=tuple(_with_shared(turn, tools) for turn in self.turns))


def _with_shared(turn: ReadTurn, tools: Container[str]) -> ReadTurn:
    kept = tuple(each for each in turn.reads if each.placement != "auto" or each.heading.partition(" ")[0] in tools)
    if len(kept) == len(turn.reads):
        return turn
    return replace(turn, inline=turn.inline + sum(each.size for each in turn.reads if each not in kept), reads=kept)


def reader_of(
    own: int, turns: Iterable[tuple[int, Sequence[ToolResult]]], shared_tools: Container[str] | None
) -> Reader:
    """What an agent read, in characters. `turns`: the reply before the results of each turn, and the results;
    `shared_tools`: tools whose results agents share, None for all."""
    return Reader(own, tuple([_read_turn(reply, results, shared_tools) for reply, results in turns]))


def _read_turn(reply: int, results: Sequence[ToolResult], shared_tools: Container[str] | None) -> ReadTurn:
    inline, reads = 0, list[Read]()
    for result in results:
        size, reference, name = len(result.content), result.reference, result.call.name
        if reference is not None:
            reads.append(Read(reference.heading, size, reference.placement, reference.rank))
        elif size >= MIN_CHARS and not result.is_error and (shared_tools is None or name in shared_tools):
            reads.append(Read(f"{name} {hash(result.call.arguments)}", size))
        else:
            inline += size
    return ReadTurn(reply, inline, tuple(reads))


class ReferenceModel:
    """Agents on a server that keeps every prefix."""

    def __init__(self, shared: float = 0.0) -> None:
        """`shared`: size of what all prompts begin with."""
        self.inline = shared
        """Computed with every result behind its call."""
        self.first = shared
        """Computed with results placed as recorded, or as decided."""
        self.placed = 0
        """Results placed first."""
        self.references: set[str] = set()
        """Headings of those."""
        self.paths: list[Path] = []
        """References of each agent's last prompt."""
        self.ranks: dict[str, int] = {}
        self.readers: dict[str, int] = {}
        self.read_paths = ReadPaths()
        self._tree = ReferenceTree()

    def add(self, agents: Sequence[Reader]) -> None:
        """Adds agents that run at the same time: all have asked for the results of a turn before the first arrives."""
        prompts = [ReferencedPrompt(self, agent.own) for agent in agents]
        own = sum(agent.own for agent in agents)
        self.inline += own
        self.first += own
        for at in range(max((len(agent.turns) for agent in agents), default=0)):
            turns = [
                (prompt, agent.turns[at])
                for prompt, agent in zip(prompts, agents, strict=True)
                if at < len(agent.turns)
            ]
            for prompt, turn in turns:
                prompt.ask(turn)
            for prompt, turn in turns:
                self._extend(prompt, turn)
        for prompt in prompts:
            self.placed += prompt.placed
            self.references.update(each.heading for each in prompt.path)
            self.paths.append(prompt.path)

    def _extend(self, prompt: "ReferencedPrompt", turn: ReadTurn) -> None:
        before, path = prompt.inline, prompt.path
        prompt.extend(turn)
        self.inline += turn.inline + sum(read.size for read in turn.reads)
        self.first += prompt.inline - before
        if prompt.path != path:
            self.first += before + prompt.replies + self._tree.add(prompt.path)

    def in_order(self, headings: Iterable[str]) -> list[str]:
        """Headings in the order of a prompt."""
        return sorted(headings, key=lambda heading: (self.ranks[heading], heading))

    @property
    def saved_share(self) -> float:
        return 1.0 - self.first / self.inline if self.inline else 0.0


class ReferencedPrompt:
    """Prompt of one agent, with its references before its own text."""

    def __init__(self, model: ReferenceModel, own: float) -> None:
        self._model = model
        self._references: dict[str, float] = {}
        self._asked: set[str] = set()
        self.inline = own
        """Own text and results behind their calls."""
        self.replies = 0.0
        self.placed = 0
        self.path: Path = ()
        """References, in their order."""

    def extend(self, turn: ReadTurn) -> None:
        """Adds a turn: its results are placed first or behind their calls."""
        self.replies += turn.reply
        self.ask(turn)
        new = {read.heading: read for read in turn.reads if read.heading not in self._references}
        chosen = self._placed_first(list(new.values()))
        self.placed += sum(read.heading in self._references or read.heading in chosen for read in turn.reads)
        self.inline += turn.inline + sum(
            read.size for read in turn.reads if read.heading in new and read.heading not in chosen
        )
        if chosen:
            self._references |= {heading: new[heading].size for heading in chosen}
            ordered = self._model.in_order(self._references)
            self.path = tuple(SizedReference(heading, self._references[heading]) for heading in ordered)

    def ask(self, turn: ReadTurn) -> None:
        """The agent has asked for the results of this turn. May be called before `extend`."""
        model = self._model
        for read in turn.reads:
            model.ranks.setdefault(read.heading, len(model.ranks) if read.rank is None else read.rank)
            if read.heading not in self._asked:
                model.readers[read.heading] = model.readers.get(read.heading, 0) + 1
                before = model.in_order(self._asked)
                self._asked.add(read.heading)
                model.read_paths.extend(before, model.in_order(self._asked))

    def _placed_first(self, new: Sequence[Read]) -> frozenset[str]:
        """Headings of those that are placed first, by the rule of a run: those that are open, if less is computed for
        this agent than all of them."""
        recorded = frozenset(read.heading for read in new if read.placement == "first")
        undecided = [read for read in new if read.placement == "auto"]
        if not undecided:
            return recorded
        moved = 0.0 if recorded else self.inline + self.replies
        if moved + self._shared_cost(new) < sum(read.size for read in undecided):
            return recorded | {read.heading for read in undecided}
        return recorded

    def _shared_cost(self, new: Sequence[Read]) -> float:
        """The agent's part of the references that are new in their places."""
        sizes = self._references | {read.heading: read.size for read in new if read.placement != "inline"}
        path, present = self._model.in_order(sizes), [each.heading for each in self.path]
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, present, strict=False)))
        agents = self._model.read_paths.agents
        return sum(sizes[path[at]] / agents(path[: at + 1]) for at in range(kept, len(path)))


class ReadRecorder:
    """What the agents of a run read, for the report at its end. Mutable: each agent is added when it ends."""

    def __init__(self, shared: float = 0.0) -> None:
        """`shared`: characters that all prompts begin with."""
        self._shared = shared
        self._agents: list[Reader] = []
        self._count = 0
        self._is_used = False
        self._placed = 0
        self._placed_for = 0
        self._first: set[str] = set()
        self._report: tuple[int, SharedResults | None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a further agent makes a difference: nothing is computed for those that do not."""
        return self._is_used or len(self._agents) < MAX_READERS

    def add(self, agent: Reader | None) -> None:
        """`agent`: may be None if the recorder is not open."""
        self._count += 1
        if agent is None:
            return
        if len(self._agents) < MAX_READERS:
            self._agents.append(agent)
        recorded = [read for turn in agent.turns for read in turn.reads if read.placement != "auto"]
        if recorded:
            self._is_used = True
            first = [read.heading for read in recorded if read.placement == "first"]
            self._placed += len(first)
            self._placed_for += bool(first)
            self._first.update(first)

    def report(self, size_per_token: float, stored_once: int | None = None) -> SharedResults | None:
        """None if results were not placed, and little could be gained by that. `size_per_token`: of the readers;
        `stored_once`: tokens of the KV cache that sharing saved at most."""
        if self._report is None or self._report[0] != self._count:
            self._report = self._count, self._made(size_per_token, stored_once)
        return self._report[1]

    def _made(self, size_per_token: float, stored_once: int | None) -> SharedResults | None:
        if not self._is_used and not is_worthwhile(self._agents, self._shared):
            return None
        model = model_of(self._agents, self._shared)
        if not self._is_used and model.saved_share < MIN_SHARE:
            return None
        runs_per_sample = self._count / max(1, len(self._agents))
        saved = (model.inline - model.first) * runs_per_sample / size_per_token
        if not self._is_used:
            found = possible_results(model, self._agents, round(saved))
            return replace(found, agents=round(found.agents * runs_per_sample))
        return SharedResults(
            len(self._first), self._placed_for, self._placed, round(saved), model.saved_share, stored_once
        )


def model_of(agents: Sequence[Reader], shared: float = 0.0) -> ReferenceModel:
    """Model of agents that run at the same time."""
    model = ReferenceModel(shared)
    model.add(agents)
    return model


def is_worthwhile(agents: Sequence[Reader], shared: float = 0.0) -> bool:
    """Whether something could be gained at all: a bound that is cheaper to compute than a model."""
    seen: set[str] = set()
    repeated = total = 0.0
    for agent in agents:
        total += agent.own
        for turn in agent.turns:
            total += turn.inline
            for read in turn.reads:
                total += read.size
                if read.heading in seen:
                    repeated += read.size
                seen.add(read.heading)
    return len(agents) > 1 and repeated > MIN_SHARE * (shared + total)


def possible_results(model: ReferenceModel, agents: Iterable[Reader], saved_tokens: int) -> SharedResults:
    """Results that several agents read, with what it would save to put them first."""
    shared = {heading for heading, readers in model.readers.items() if readers > 1}
    return SharedResults(len(shared), _readers_of(shared, agents), 0, saved_tokens, model.saved_share)


def _readers_of(headings: set[str], agents: Iterable[Reader]) -> int:
    return sum(any(read.heading in headings for turn in agent.turns for read in turn.reads) for agent in agents)
