"""Driver of the engine: advances it by the clock, and passes its output to the response writers."""

import asyncio
import functools

from ..generation import Generation
from ..http import ClientConnection
from ..response_writer import SimResponseWriter
from ..sim_config import SimConfig
from .sequence import Sequence
from .sim_engine import SimEngine

MIN_TIMER_S = 0.001
"""uvloop's timers have a resolution of a millisecond, so a shorter timer would spin. The engine's clock stays exact."""


class EngineDriver:
    """Runs one engine on one event loop, without awaiting."""

    def __init__(self, config: SimConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = SimEngine(config)
        self._config = config
        self._loop = loop
        self._writers: dict[Sequence, tuple[SimResponseWriter, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, generation: Generation, writer: SimResponseWriter, connection: ClientConnection) -> None:
        """Runs all sequences of a request. They are dropped if the client disconnects."""
        if self._config.zero_latency:
            self._run_immediately(generation, writer)
            return
        connection.on_disconnect = functools.partial(self._on_disconnect, generation)
        self.run()
        now = self._loop.time()
        for index, sequence in enumerate(generation.sequences):
            self._writers[sequence] = (writer, index)
            self.engine.add(sequence, now)
        self.run()

    def abort(self, generation: Generation) -> None:
        """Drops the sequences of a request and frees their blocks. The engine must be up to date."""
        now = self._loop.time()
        for sequence in generation.sequences:
            if self._writers.pop(sequence, None):
                self.engine.abort(sequence, now)

    def run(self) -> None:
        """Advances the engine to the current time, writes its output, and schedules the next run."""
        for progress in self.engine.advance(self._loop.time()):
            sequence = progress.sequence
            found = self._writers.pop(sequence, None) if progress.finished else self._writers.get(sequence)
            if found:
                writer, index = found
                writer.progress(index, progress.start, progress.stop, finished=progress.finished)
        wake_at = self.engine.wake_at
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            self._timer = self._loop.call_later(max(wake_at - self._loop.time(), MIN_TIMER_S), self.run)

    def _on_disconnect(self, generation: Generation) -> None:
        self.run()
        self.abort(generation)
        self.run()

    def _run_immediately(self, generation: Generation, writer: SimResponseWriter) -> None:
        sequences = generation.sequences
        for sequence in sequences:
            self.engine.run_alone(sequence)
        if generation.is_stream and len(sequences) > 1:
            self._write_interleaved(sequences, generation.chunk_tokens, writer)
            return
        for index, sequence in enumerate(sequences):
            writer.progress(index, 0, sequence.generated, finished=True)

    def _write_interleaved(self, sequences: list[Sequence], chunk_tokens: int, writer: SimResponseWriter) -> None:
        """Interleaves the replies of a list, like an engine with real step times."""
        for start in range(0, max(sequence.generated for sequence in sequences), chunk_tokens):
            for index, sequence in enumerate(sequences):
                if start < sequence.generated:
                    stop = min(start + chunk_tokens, sequence.generated)
                    writer.progress(index, start, stop, finished=stop == sequence.generated)
