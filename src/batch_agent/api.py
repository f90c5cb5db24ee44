"""The facade: what people call."""

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from .core.errors import RunStopped, SpecError
from .core.forecast import Forecast
from .core.interfaces import EventSink
from .core.results import AgentResult, Results
from .core.sharing import PrefixReport
from .core.spec import BatchSpec
from .engine.blocking import run_blocking
from .engine.stream import ResultStream
from .observe.progress import progress_for
from .planning import make_plan
from .preparing import Openings, Preparation
from .replaying import replay
from .running import Run


class BatchAgent:
    """Runs one task over a list of inputs, each by an agent of its own."""

    @classmethod
    async def run(cls, spec: BatchSpec | None = None, /, **options: Any) -> Results:
        """One result per input, in input order. Failures are results; it raises only for a run that cannot start
        (SpecError, BackendError, before anything is sent), for a backend that went away in mid-run (RunStopped, which
        holds the results so far) and for a checkpoint that cannot be written (StoreError)."""
        results: dict[int, AgentResult] = {}
        try:
            async with cls.stream(spec, **options) as stream:
                async for result in stream:
                    results[result.index] = result
        except RunStopped as stopped:
            stopped.results = [results[index] for index in sorted(results)]
            raise
        return Results((results[index] for index in sorted(results)), stream.scheduling, stream.prefix)

    @classmethod
    async def replay(cls, run_dir: str | Path, agent: str | int | None = None, **options: Any) -> list[AgentResult]:
        """Runs the agents of a checkpoint again from what was recorded, without a server and without calling tools:
        see `batch_agent.replaying.replay`."""
        return await replay(run_dir, agent, **options)

    @classmethod
    def run_sync(cls, spec: BatchSpec | None = None, /, **options: Any) -> Results:
        """`run` for scripts; inside a running event loop (a notebook) it works from a thread of its own."""
        return run_blocking(lambda: cls.run(spec, **options))

    @classmethod
    def stream(
        cls,
        spec: BatchSpec | None = None,
        /,
        *,
        events: EventSink | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> ResultStream:
        """Results as the agents finish: `async for result in BatchAgent.stream(...)`. Leaving the loop early cancels
        the rest. `events` sees everything that happens; without it, `progress` (None: in a terminal) is shown."""
        if events is None and (sys.stderr.isatty() if progress is None else progress):
            events = progress_for(sys.stderr)
        return ResultStream(Run(Preparation.check(_spec(spec, options), events)).drive)

    @classmethod
    async def lint(
        cls, spec: BatchSpec | None = None, /, *, exact: bool = False, events: EventSink | None = None, **options: Any
    ) -> PrefixReport:
        """What the prompts of this run would share, and what keeps them from sharing more. No model is asked. `exact`:
        the backend is opened, to count tokens as it does."""
        preparation = Preparation.check(_spec(spec, options), events)
        if not exact:
            return await preparation.lint()
        async with AsyncExitStack() as stack:
            prepared = await preparation.opened(await preparation.lay_out(), Openings([preparation], stack))
            return prepared.report

    @classmethod
    async def plan(
        cls, spec: BatchSpec | None = None, /, *, canary: int = 0, events: EventSink | None = None, **options: Any
    ) -> Forecast:
        """What this run will be: agents, tokens, memory, time and cost. `canary`: so many agents are really run, which
        is what time can be told from; with a `checkpoint_dir` the run will not ask them again. After it,
        `forecast.against(results, seconds)` compares."""
        return await make_plan(_spec(spec, options), canary, events)


def _spec(spec: BatchSpec | None, options: dict[str, Any]) -> BatchSpec:
    if spec is not None and options:
        raise SpecError(f"Give either a BatchSpec or options, not both: {', '.join(options)}.")
    return spec or BatchSpec.of(**options)


__all__: Sequence[str] = ["BatchAgent"]
