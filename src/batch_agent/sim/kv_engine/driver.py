"""Moves the engine along with the clock, and what it computes on to those who wait for it."""

import asyncio
import functools

from ..config import SimConfig
from ..generation import Generation
from ..http import ClientConnection
from ..response_writer import SimResponseWriter
from .engine import SimEngine
from .sequence import Sequence

MIN_TIMER_S = 0.001
"""uvloop counts in milliseconds: a shorter timer would spin. The engine's own clock stays exact."""


class EngineDriver:
    """One engine on one event loop. Nothing here awaits."""

    def __init__(self, config: SimConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = SimEngine(config)
        self._config = config
        self._loop = loop
        self._deliveries: dict[Sequence, tuple[SimResponseWriter, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, generation: Generation, delivery: SimResponseWriter, connection: ClientConnection) -> None:
        """Run all sequences of a request; those of a client who hangs up are dropped."""
        if self._config.zero_latency:
            self._run_at_once(generation, delivery)
            return
        connection.on_gone = functools.partial(self._leave, generation)
        self.run()
        now = self._loop.time()
        for index, sequence in enumerate(generation.sequences):
            self._deliveries[sequence] = (delivery, index)
            self.engine.add(sequence, now)
        self.run()

    def abort(self, generation: Generation) -> None:
        """Nobody wants the rest: free what the sequences hold. The engine must be up to date."""
        now = self._loop.time()
        for sequence in generation.sequences:
            if self._deliveries.pop(sequence, None):
                self.engine.abort(sequence, now)

    def run(self) -> None:
        """Bring the engine up to now, deliver what came out, and come back when there is more."""
        for news in self.engine.advance(self._loop.time()):
            sequence = news.sequence
            found = self._deliveries.pop(sequence, None) if news.finished else self._deliveries.get(sequence)
            if found:
                delivery, index = found
                delivery.progress(index, news.start, news.stop, finished=news.finished)
        wake_at = self.engine.wake_at
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            self._timer = self._loop.call_later(max(wake_at - self._loop.time(), MIN_TIMER_S), self.run)

    def _leave(self, generation: Generation) -> None:
        """The client is gone."""
        self.run()
        self.abort(generation)
        self.run()

    def _run_at_once(self, generation: Generation, delivery: SimResponseWriter) -> None:
        sequences = generation.sequences
        for sequence in sequences:
            self.engine.run_alone(sequence)
        if generation.is_stream and len(sequences) > 1:
            self._deliver_in_turns(sequences, generation.chunk_tokens, delivery)
            return
        for index, sequence in enumerate(sequences):
            delivery.progress(index, 0, sequence.generated, finished=True)

    def _deliver_in_turns(self, sequences: list[Sequence], piece: int, delivery: SimResponseWriter) -> None:
        """Mix the answers of a list as they are mixed where steps take time."""
        for start in range(0, max(sequence.generated for sequence in sequences), piece):
            for index, sequence in enumerate(sequences):
                if start < sequence.generated:
                    stop = min(start + piece, sequence.generated)
                    delivery.progress(index, start, stop, finished=stop == sequence.generated)
