"""A run in virtual time: the scheduling that the real one will have, before a server that is simulated."""

import asyncio
from collections.abc import Sequence as Many
from dataclasses import field
from typing import Protocol

from .. import aio
from ..core.agent_config import Job
from ..core.facts import Replied
from ..core.fast_dataclass import dataclass
from ..core.messages import ToolCall
from ..core.protocols import ServerLoad
from ..core.requests import NO_USAGE, Reply, Usage
from ..engine.admission import AdmissionController
from ..engine.monitor import monitor_load
from ..engine.residency import Residency
from ..engine.slots import HeldSlot, Slots
from ..schedule.concurrency_limit import InflightLimit
from ..schedule.kv_ledger import KvLedger
from ..sim import SimConfig
from ..sim.kv_engine.engine import SimEngine
from ..sim.kv_engine.sequence import Sequence
from ..virtual_time import run_virtual
from .model import AgentProfile, prompts

_ONCE = 10**9
"""Tokens that may gather before the engine reports them: it reports the first, and then only the end."""
_OWN = 1 << 24
_MOST_TURNS = 1_000
_TOOL = ToolCall("", "tool", "{}")


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """What a rehearsal is given beside its agents."""

    shared: int
    """Tokens that all prompts begin with."""
    first: int
    """Tokens of a first prompt, the shared ones too."""
    inflight: int
    is_fixed: bool
    """Whether the number of requests in flight stays as it is."""
    kv_tokens: int | None = None
    """What residents may hold; None: places are not counted."""
    is_warm: bool = False
    """Whether the server has the shared part in its cache when the first agent comes."""


@dataclass(slots=True)
class SimulationResult:
    """What happened, in seconds from its start."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    decoding: float = 0.0
    """Of all turns, from their first tokens on."""
    later_turns: Usage = NO_USAGE
    inflight: int = 0

    @property
    def seconds(self) -> float:
        return self.ends[-1]


class ServerModel(Protocol):
    """Answers sequences, in the time of the running loop."""

    async def answer(self, sequence: Sequence) -> float:
        """Returns when the answer is whole; how long it took from its first token on."""
        ...


class SimulatedServer:
    """The engine of `batch_agent.sim` without its HTTP. `overhead`: seconds that a request takes beside it."""

    def __init__(self, config: SimConfig, overhead: float = 0.0) -> None:
        self._engine = SimEngine(config)
        self._overhead = overhead
        self._waiting: dict[Sequence, tuple[asyncio.Future[None], list[float]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def warm(self, hashes: Many[int], block_size: int) -> None:
        self._engine.run_alone(Sequence(len(hashes) * block_size + 1, 1, hashes))

    async def answer(self, sequence: Sequence) -> float:
        loop = asyncio.get_running_loop()
        if self._overhead:
            await asyncio.sleep(self._overhead)
        self._go_on()
        done, first = loop.create_future(), [0.0]
        self._waiting[sequence] = done, first
        self._engine.add(sequence, loop.time())
        self._go_on()
        await done
        return loop.time() - first[0]

    async def load(self) -> ServerLoad:
        self._go_on()
        engine, scheduler = self._engine, self._engine.scheduler
        computed = scheduler.query_tokens - scheduler.hit_tokens + engine.counters.generation_tokens
        used = engine.pool.used / engine.pool.num_blocks
        return ServerLoad(len(scheduler.running), scheduler.waiting, used, scheduler.preemptions, computed)

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        for progress in self._engine.advance(loop.time()):
            done, first = self._waiting[progress.sequence]
            if not progress.start:
                first[0] = loop.time()
            if progress.finished:
                del self._waiting[progress.sequence]
                done.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        wake_at = self._engine.wake_at
        self._timer = None if wake_at is None else loop.call_at(wake_at, self._go_on)


@dataclass(frozen=True, slots=True)
class ConstantLatencyServer:
    """Takes as long for every turn, whatever else it is asked: a service whose machines are its own affair."""

    turn_seconds: float
    seconds_per_token: float = 0.0

    async def answer(self, sequence: Sequence) -> float:
        decoding = self.seconds_per_token * (sequence.output_tokens - 1)
        await asyncio.sleep(self.turn_seconds + decoding)
        sequence.cached = 0
        return decoding


def simulate(
    cast: Many[AgentProfile], stage: SimulationSetup, config: SimConfig, overhead: float = 0.0
) -> SimulationResult:
    """On a simulated engine. Blocks, and runs an event loop: from a coroutine, call it in a thread."""

    async def main() -> SimulationResult:
        server = SimulatedServer(config, overhead)
        if stage.is_warm and config.prefix_caching:
            server.warm(_hashes(0, stage.shared, stage.shared, config.block_size), config.block_size)
        return await _Simulation(cast, stage, server, config).run()

    return run_virtual(main())


def simulate_constant(
    cast: Many[AgentProfile], stage: SimulationSetup, server: ConstantLatencyServer
) -> SimulationResult:
    """On a service that is as quick however much it is asked. Blocks as `simulate` does."""

    async def main() -> SimulationResult:
        return await _Simulation(cast, stage, server, SimConfig(prefix_caching=False)).run()

    return run_virtual(main())


class _Simulation:
    """One rehearsal under way."""

    def __init__(
        self, cast: Many[AgentProfile], stage: SimulationSetup, server: ServerModel, config: SimConfig
    ) -> None:
        self._cast = cast
        self._stage = stage
        self._server = server
        self._config = config
        residency = None
        if stage.kv_tokens is not None:
            residency = Residency(KvLedger(stage.kv_tokens), stage.shared, chars_per_token=1.0)
        slots = Slots(InflightLimit(stage.inflight, stage.is_fixed))
        self._gate = AdmissionController(slots, residency, shared_chars=stage.shared)
        self._seen = SimulationResult()
        self._in_flight = 0

    async def run(self) -> SimulationResult:
        task = "x" * (self._stage.first - self._stage.shared)
        async with monitor_load(self._server, self._gate), asyncio.TaskGroup() as group:
            for index, life in enumerate(self._cast):
                job = Job(index, str(index), None, task)
                slot = await self._gate.admit(job, ())
                self._seen.starts.append(aio.now())
                group.create_task(self._live(job, life, slot))
        return self._seen

    async def _live(self, job: Job, life: AgentProfile, slot: HeldSlot) -> None:
        for at, prompt in enumerate(prompts(life, self._stage.first)):
            if at:
                slot = await self._gate.readmit(job, _MOST_TURNS - at)
            usage = await self._turn(job, prompt, life[at].output)
            slot.release()
            if at:
                self._seen.later_turns += usage
            if at + 1 < len(life):
                with self._gate.tool_wait(job.key, [_TOOL], None):
                    await asyncio.sleep(life[at].tool_seconds)
        self._gate.release(job.key)
        self._seen.ends.append(aio.now())

    async def _turn(self, job: Job, prompt: int, output: int) -> Usage:
        started, size = aio.now(), self._config.block_size
        hashes = _hashes(job.index, prompt + output, self._stage.shared, size) if self._config.prefix_caching else ()
        sequence = Sequence(prompt, output, hashes, emit_every=_ONCE)
        self._in_flight += 1
        self._seen.inflight = max(self._seen.inflight, self._in_flight)
        decoding = await self._server.answer(sequence)
        self._seen.decoding += decoding
        self._in_flight -= 1
        usage = Usage(prompt, sequence.cached, output)
        self._gate.on_reply(job.key, Replied(Reply("", "stop", usage), 0.0, aio.now() - started))
        return usage


def _hashes(agent: int, tokens: int, shared: int, block_size: int) -> list[int]:
    """The full blocks of an agent's context; those below `shared` are everybody's."""
    full, common = tokens // block_size, shared // block_size
    return [*range(-common, 0), *range(agent * _OWN, agent * _OWN + full - common)]
