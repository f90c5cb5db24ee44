"""One scene, driven by BatchAgent or by a plain loop, and measured."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Literal

import aiohttp

from batch_agent import BatchAgent
from batch_agent.backends.connect import connect
from batch_agent.core.events import AgentFinished, AgentStarted, Event, RunStarted, SchedulingReported
from batch_agent.core.protocols.event_sink import EventSink
from batch_agent.core.results import AgentResult

from .gather_loop import plain
from .scenario import Scene
from .scripted_backend import Played
from .server_info import Server, ServerGone
from .turn_recorder import Watch
from .vllm_process import say

_LOOKED_EVERY = 2.0


class Heard:
    """Counts what the engine tells, and keeps the words of what is rare."""

    def __init__(self) -> None:
        self.inflight: int | None = None
        self.seen: tuple[str, ...] = ()
        self.counts: Counter[str] = Counter()
        self.latest: dict[str, str] = {}
        self.scheduling: dict[str, Any] | None = None

    def emit(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.inflight, self.seen = event.inflight, event.seen
        elif isinstance(event, SchedulingReported):
            self.scheduling = asdict(event.scheduling)
        elif not isinstance(event, AgentStarted | AgentFinished):
            name = type(event).__name__
            self.counts[name] += 1
            self.latest[name] = str(event)[:1000]

    def numbers(self) -> dict[str, Any]:
        return {
            "inflight_at_first": self.inflight,
            "seen": list(self.seen),
            "events": dict(self.counts),
            "latest": self.latest,
            "scheduling": self.scheduling,
        }


async def run_ours(
    server: Server,
    scene: Scene,
    limit: float,
    *,
    events: EventSink | None = None,
    traced: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """`BatchAgent.run` as it comes: nothing set but the streaming, which shows the first token, and `options`."""
    watch, heard = Watch(), Heard()
    backend = await connect(f"{server.url}/v1", server.model, uses_tools=False, notify=say)

    def on_result(result: AgentResult) -> None:
        watch.agent_done(None if result.ok else str(result.error))

    async def run() -> None:
        await BatchAgent.run(
            task="{it}",
            inputs=list(scene.tasks),
            system_prompt=scene.system,
            tools=[scene.tool(watch)] if scene.turns > 1 else [],
            backend=Played(backend, scene, watch),
            streaming=True,
            events=[heard, *([events] if events is not None else [])],
            on_result=on_result,
            **options,
        )

    try:
        numbers = await measured(server, watch, run, limit, traced=traced)
    finally:
        await backend.aclose()
    return {**numbers, "engine": {**heard.numbers(), "kv_tokens": backend.traits.kv_tokens}}


async def run_plain(
    server: Server,
    scene: Scene,
    limit: float,
    *,
    at_once: int | None = None,
    placement: Literal["inline", "first"] = "inline",
    traced: bool = False,
) -> dict[str, Any]:
    watch = Watch()
    return await measured(
        server,
        watch,
        lambda: plain(server.url, server.model, scene, watch, at_once=at_once, placement=placement),
        limit,
        traced=traced,
    )


async def measured(
    server: Server, watch: Watch, run: Callable[[], Awaitable[None]], limit: float, *, traced: bool = False
) -> dict[str, Any]:
    """What a run has come to that fails, or is cut off at its limit, is given too: its peer is still measured."""
    before = await server.counters()
    was_cut_off, cpu = False, time.process_time()
    watch.start()
    try:
        async with asyncio.timeout(limit):
            await _while_there(server, run)
    except TimeoutError:
        was_cut_off = True
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the numbers
        watch.failures.append(f"{type(error).__name__}: {error}")
    watch.stop()
    cpu = time.process_time() - cpu
    counted = await _counted_since(server, before)
    trace = {"turns": watch.trace()} if traced else {}
    return {**watch.numbers(), "cpu_s": round(cpu, 3), "was_cut_off": was_cut_off, "server_counted": counted, **trace}


async def _while_there(server: Server, run: Callable[[], Awaitable[None]]) -> None:
    """Raises ServerGone once the server is gone: a client would go on trying for minutes."""
    running, gone = asyncio.ensure_future(run()), asyncio.ensure_future(_wait_until_gone(server))
    try:
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not running.done():
            gone.result()
        await running
    finally:
        running.cancel()
        gone.cancel()
        await asyncio.wait((running, gone))


async def _wait_until_gone(server: Server) -> None:
    while not await server.is_gone():
        await asyncio.sleep(_LOOKED_EVERY)
    raise ServerGone("the server ended during the run")


async def _counted_since(server: Server, before: dict[str, float]) -> dict[str, int]:
    """Nothing, if the server is gone."""
    try:
        after = await server.counters()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return {}
    return {name: round(after[name] - before[name]) for name in after}
