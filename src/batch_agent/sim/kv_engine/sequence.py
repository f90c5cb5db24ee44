"""State of one sequence in the simulated engine."""

from collections.abc import Sequence as Hashes
from dataclasses import field

from ...core.fast_dataclass import dataclass


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt, the tokens it will generate, and how much of both is computed. Changed only by the engine.

    `hashes`: chained hashes of the full blocks of prompt and answer together; empty without a prefix cache. `agent`:
    name of the agent, for an exclusive host tier. `is_last`: whether the agent has no later sequence. `emit_every`:
    number of tokens that may gather before the engine reports them; 0 reports only the end."""

    prompt_tokens: int
    output_tokens: int
    hashes: Hashes[int] = ()
    priority: int = 0
    emit_every: int = 0
    order: int = 0
    computed: int = 0
    generated: int = 0
    emitted: int = 0
    cached: int = -1
    preemptions: int = 0
    published: int = 0
    finished: bool = False
    blocks: list[int] = field(default_factory=list)
    agent: str = ""
    is_last: bool = False

    @property
    def known(self) -> int:
        """Number of tokens that exist so far. All but the newest may be computed."""
        return self.prompt_tokens + self.generated

    @property
    def rank(self) -> tuple[int, int]:
        return (self.priority, self.order)


@dataclass(frozen=True, slots=True)
class SequenceProgress:
    """Tokens `start` to `stop` of a sequence's answer, which may end with them."""

    sequence: Sequence
    start: int
    stop: int
    finished: bool


@dataclass(slots=True)
class Stride:
    """Consecutive steps with the same batch: `steps` steps of `step_seconds` each, from `start`."""

    start: float
    step_seconds: float
    steps: int
    batch: list[tuple[Sequence, int]]

    @property
    def end(self) -> float:
        return self.start + self.step_seconds * self.steps

    def ended_by(self, now: float) -> int:
        """Number of steps that have ended at `now`."""
        if now >= self.end - 1e-9:
            return self.steps
        return max(0, int((now - self.start) / self.step_seconds))
