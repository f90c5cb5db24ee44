"""Continuous batching over a block pool. Pure: time is an argument, and nothing waits or is random."""

from dataclasses import dataclass

from ..sim_config import SimConfig
from .blocks import BlockPool
from .host_tier import ExclusiveTier, HostTier
from .scheduler import Scheduler
from .sequence import Sequence, SequenceProgress, Stride


@dataclass(slots=True)
class Counters:
    """Counters since the start of the engine, for the /metrics page."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    aborted: int = 0


class SimEngine:
    """Runs sequences in steps. Call `advance` with the time before `add` or `abort`, and again at `wake_at`.

    Steps with the same batch are taken in one stride, so an engine without output costs nothing."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        tier = ExclusiveTier if config.host_exclusive else HostTier
        self.host = tier(config.host_blocks) if config.host_blocks else None
        self.scheduler = Scheduler(config, self.pool, self.host)
        self.counters = Counters()
        self._stride: Stride | None = None
        self._time = 0.0

    @property
    def wake_at(self) -> float | None:
        """The time at which `advance` has something to do again; None while nothing runs."""
        return None if self._stride is None else self._stride.end

    def add(self, sequence: Sequence, now: float) -> None:
        """Queues a sequence, which joins the batch at the next step boundary."""
        self.scheduler.queue(sequence)
        self._end_stride_early(now)

    def abort(self, sequence: Sequence, now: float) -> None:
        """Drops a sequence, wherever it is, and frees its blocks. Does nothing to a finished one."""
        if sequence.finished:
            return
        sequence.finished = True
        self.scheduler.drop(sequence)
        self.counters.aborted += 1
        self._end_stride_early(now)

    def advance(self, now: float) -> list[SequenceProgress]:
        """Completes every step that has ended by `now`, starts the next one, and returns the progress, in order."""
        out: list[SequenceProgress] = []
        while True:
            if self._stride is None:
                self._stride = self._next_stride()
                if self._stride is None:
                    return out
            stride = self._stride
            steps = stride.ended_by(now)
            if steps:
                self._complete(stride, steps, out)
            if stride.steps:
                return out
            self._time = stride.start
            self._stride = None

    def run_alone(self, sequence: Sequence) -> None:
        """Runs a sequence to its end at once, with the same result as all its steps in an idle engine. For zero
        latency."""
        self.scheduler.run_alone(sequence)
        sequence.generated = sequence.output_tokens
        self.counters.generation_tokens += sequence.output_tokens
        self._count_end(sequence)

    def _end_stride_early(self, now: float) -> None:
        if self._stride is None:
            self._time = max(self._time, now)
        elif self._stride.steps > 1:
            self._stride.steps = 1

    def _next_stride(self) -> Stride | None:
        batch, settled = self.scheduler.plan()
        if not batch:
            return None
        steps = self.scheduler.equal_steps(batch) if settled else 1
        tokens = sum(count for _, count in batch)
        # Contexts grow by one token per sequence and step, so the mean step of a stride is its middle one.
        context = sum(sequence.computed for sequence, _ in batch) + tokens + len(batch) * (steps - 1) / 2
        seconds = self.config.step_seconds(len(batch), tokens - len(batch), context)
        if self.host is not None:
            seconds += self.config.copy_seconds(self.host.take_copied()) / steps
        return Stride(self._time, seconds, steps, batch)

    def _complete(self, stride: Stride, steps: int, out: list[SequenceProgress]) -> None:
        stride.start += stride.step_seconds * steps
        stride.steps -= steps
        for sequence, count in stride.batch:
            if not sequence.finished:
                self._complete_one(sequence, count * steps, steps, out)
        if stride.steps:
            for sequence, count in stride.batch:
                if not sequence.finished:
                    self.scheduler.grow(sequence, count)

    def _complete_one(self, sequence: Sequence, count: int, steps: int, out: list[SequenceProgress]) -> None:
        self.scheduler.grow(sequence, count)
        sequence.computed += count
        if sequence.computed < sequence.known:
            return
        sequence.generated += steps
        self.counters.generation_tokens += steps
        if sequence.generated >= sequence.output_tokens:
            self._finish(sequence, out)
        elif sequence.emit_every and _is_due(sequence):
            out.append(SequenceProgress(sequence, sequence.emitted, sequence.generated, finished=False))
            sequence.emitted = sequence.generated

    def _finish(self, sequence: Sequence, out: list[SequenceProgress]) -> None:
        self.scheduler.drop(sequence)
        self._count_end(sequence)
        out.append(SequenceProgress(sequence, sequence.emitted, sequence.generated, finished=True))

    def _count_end(self, sequence: Sequence) -> None:
        sequence.finished = True
        self.counters.finished += 1
        self.counters.prompt_tokens += sequence.prompt_tokens


def _is_due(sequence: Sequence) -> bool:
    return not sequence.emitted or sequence.generated - sequence.emitted >= sequence.emit_every
