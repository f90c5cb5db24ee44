"""Simulation of a run in virtual time: the real scheduler in front of a simulated server."""

import asyncio
from collections.abc import Sequence as Many
from dataclasses import field
from typing import Protocol

from .. import aio
from ..core.agent_config import Job
from ..core.facts import Replied
from ..core.fast_dataclass import dataclass
from ..core.messages import ToolCall
from ..core.protocols.backend import ServerLoad
from ..core.requests import NO_USAGE, Reply, Usage
from ..engine.admission import AdmissionController
from ..engine.monitor import monitor_load
from ..engine.residency import Residency
from ..engine.slots import HeldSlot, Slots
from ..schedule.concurrency_limit import InflightLimit
from ..schedule.kv_ledger import KvLedger
from ..schedule.reference_model import ReadTurn, ReferencedPrompt, ReferenceModel
from ..schedule.reference_tree import Path
from ..sim import SimConfig
from ..sim.kv_engine.sequence import Sequence
from ..sim.kv_engine.sim_engine import SimEngine
from ..virtual_time import run_virtual
from .forecast import AgentProfile, prompts

_NEVER_BETWEEN = 10**9
"""Tokens between two progress reports of the engine. So large that it reports only the first token and the end."""
_AGENT_BLOCKS = 1 << 24
"""Distance between the block hashes of two agents."""
_MAX_TURNS = 1_000
_TOOL = ToolCall("", "tool", "{}")


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """Parameters of a simulation."""

    shared: int
    """Tokens at the beginning of all prompts."""
    first: int
    """Tokens of a first prompt, including the shared ones."""
    inflight: int
    is_fixed: bool
    """Whether the limit of requests in flight is fixed."""
    kv_tokens: int | None = None
    """Capacity for residents; None: residency is not limited."""
    is_warm: bool = False
    """Whether the shared prefix is cached before the first agent."""


@dataclass(slots=True)
class SimulationResult:
    """Outcome of a simulation, in seconds from its start."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    decoding: float = 0.0
    """Total time after the first token, over all turns."""
    later_turns: Usage = NO_USAGE
    inflight: int = 0

    @property
    def seconds(self) -> float:
        return self.ends[-1]


class ServerModel(Protocol):
    """A server that answers sequences in the time of the running event loop."""

    async def answer(self, sequence: Sequence) -> float:
        """Returns when the answer is complete, with the time since its first token."""
        ...


class SimulatedServer:
    """The engine of `batch_agent.sim` without HTTP. `overhead`: seconds per request outside of the engine."""

    def __init__(self, config: SimConfig, overhead: float = 0.0) -> None:
        self.engine = SimEngine(config)
        self._overhead = overhead
        self._waiting: dict[Sequence, tuple[asyncio.Future[None], list[float]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def warm(self, hashes: Many[int], block_size: int) -> None:
        self.engine.run_alone(Sequence(len(hashes) * block_size + 1, 1, hashes))

    async def answer(self, sequence: Sequence) -> float:
        loop = asyncio.get_running_loop()
        if self._overhead:
            await asyncio.sleep(self._overhead)
        self._advance()
        done, first = loop.create_future(), [0.0]
        self._waiting[sequence] = done, first
        self.engine.add(sequence, loop.time())
        self._advance()
        await done
        return loop.time() - first[0]

    async def load(self) -> ServerLoad:
        self._advance()
        engine, scheduler = self.engine, self.engine.scheduler
        computed = scheduler.query_tokens - scheduler.hit_tokens + engine.counters.generation_tokens
        used = engine.pool.used / engine.pool.num_blocks
        host = None if engine.config.host_exclusive else engine.config.host_blocks * engine.config.block_size or None
        return ServerLoad(len(scheduler.running), scheduler.waiting, used, scheduler.preemptions, computed, host)

    def _advance(self) -> None:
        loop = asyncio.get_running_loop()
        for progress in self.engine.advance(loop.time()):
            done, first = self._waiting[progress.sequence]
            if not progress.start:
                first[0] = loop.time()
            if progress.finished:
                del self._waiting[progress.sequence]
                done.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        wake_at = self.engine.wake_at
        self._timer = None if wake_at is None else loop.call_at(wake_at, self._advance)


@dataclass(frozen=True, slots=True)
class ConstantLatencyServer:
    """A server whose latency does not depend on load, like a managed service."""

    turn_seconds: float
    seconds_per_token: float = 0.0

    async def answer(self, sequence: Sequence) -> float:
        decoding = self.seconds_per_token * (sequence.output_tokens - 1)
        await asyncio.sleep(self.turn_seconds + decoding)
        sequence.cached = 0
        return decoding


def simulate(
    profiles: Many[AgentProfile], setup: SimulationSetup, config: SimConfig, overhead: float = 0.0
) -> SimulationResult:
    """Simulates a run on a simulated engine. Blocks and runs an event loop, so call it in a thread from a coroutine."""

    async def main() -> SimulationResult:
        server = SimulatedServer(config, overhead)
        if setup.is_warm and config.prefix_caching:
            server.warm(_hashes(0, setup.shared, setup.shared, config.block_size), config.block_size)
        return await _Simulation(profiles, setup, server, config).run()

    return run_virtual(main())


def simulate_constant(
    profiles: Many[AgentProfile], setup: SimulationSetup, server: ConstantLatencyServer
) -> SimulationResult:
    """Simulates a run on a service with constant latency. Blocks like `simulate`."""

    async def main() -> SimulationResult:
        return await _Simulation(profiles, setup, server, SimConfig(prefix_caching=False)).run()

    return run_virtual(main())


class _Simulation:
    """A running simulation."""

    def __init__(
        self, profiles: Many[AgentProfile], setup: SimulationSetup, server: ServerModel, config: SimConfig
    ) -> None:
        self._profiles = profiles
        self._setup = setup
        self._server = server
        self._config = config
        residency = None
        if setup.kv_tokens is not None:
            residency = Residency(KvLedger(setup.kv_tokens), setup.shared, chars_per_token=1.0)
        slots = Slots(InflightLimit(setup.inflight, setup.is_fixed))
        self._gate = AdmissionController(slots, residency, shared_chars=setup.shared)
        self._result = SimulationResult()
        self._in_flight = 0
        self._model = ReferenceModel()
        """Records which agents have asked for which results."""
        self._blocks = _ReferenceBlocks()

    async def run(self) -> SimulationResult:
        task = "x" * (self._setup.first - self._setup.shared)
        async with monitor_load(self._server, self._gate), asyncio.TaskGroup() as group:
            for index, profile in enumerate(self._profiles):
                job = Job(index, str(index), None, task)
                slot = await self._gate.admit(job, ())
                self._result.starts.append(aio.now())
                group.create_task(self._run_agent(job, profile, slot))
        return self._result

    async def _run_agent(self, job: Job, profile: AgentProfile, slot: HeldSlot) -> None:
        layout = ReferencedPrompt(self._model, self._setup.first - self._setup.shared)
        moves = 0
        for at, prompt in enumerate(prompts(profile, self._setup.first)):
            if at:
                slot = await self._gate.readmit(job, _MAX_TURNS - at)
            usage = await self._turn(job, prompt, profile[at].output, layout.path, moves)
            slot.release()
            if at:
                self._result.later_turns += usage
            if at + 1 < len(profile):
                moves += await self._call(job, profile[at].read_turn(job.index, at), profile[at].tool_seconds, layout)
        self._gate.release(job.key)
        self._result.ends.append(aio.now())

    async def _call(self, job: Job, turn: ReadTurn, seconds: float, layout: ReferencedPrompt) -> bool:
        """Runs a turn's tool calls. Returns whether the agent's own text moves behind a new reference."""
        before = layout.path
        layout.ask(turn)
        with self._gate.tool_wait(job.key, [_TOOL], None):
            await asyncio.sleep(seconds)
        layout.extend(turn)
        if layout.path == before:
            return False
        self._gate.on_references(job.key, {each.heading: round(each.tokens) for each in layout.path})
        return True

    async def _turn(self, job: Job, prompt: int, output: int, references: Path, moves: int) -> Usage:
        started, size, shared = aio.now(), self._config.block_size, self._setup.shared
        hashes: list[int] = []
        if self._config.prefix_caching:
            own = job.index + moves * len(self._profiles)
            hashes = self._blocks.hashes(own, prompt + output, shared, references, size)
        sequence = Sequence(prompt, output, hashes, emit_every=_NEVER_BETWEEN)
        self._in_flight += 1
        self._result.inflight = max(self._result.inflight, self._in_flight)
        decoding = await self._server.answer(sequence)
        self._result.decoding += decoding
        self._in_flight -= 1
        usage = Usage(prompt, sequence.cached, output)
        self._gate.on_reply(job.key, Replied(Reply("", "stop", usage), 0.0, aio.now() - started))
        return usage


class _ReferenceBlocks:
    """Block hashes of prompts with references. A reference has the same hashes in all prompts with the same references
    before it."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}
        """Numbers of references, by the headings up to each of them."""

    def hashes(self, own: int, tokens: int, shared: int, references: Path, block_size: int) -> list[int]:
        """`own`: identifies the agent and the number of times that its own text has moved."""
        hashes = _hashes(own, min(tokens, shared), shared, block_size)
        end, before = float(shared), tuple[str, ...]()
        for each in references:
            end, before = end + each.tokens, (*before, each.heading)
            number = self._numbers.setdefault(before, len(self._numbers) + 1)
            full = int(min(end, tokens)) // block_size
            hashes += range(-number * _AGENT_BLOCKS, -number * _AGENT_BLOCKS + full - len(hashes))
        own_blocks = tokens // block_size - len(hashes)
        return [*hashes, *range(own * _AGENT_BLOCKS, own * _AGENT_BLOCKS + own_blocks)]


def _hashes(agent: int, tokens: int, shared: int, block_size: int) -> list[int]:
    """Hashes of the full blocks of an agent's context. Blocks below `shared` are the same for all agents."""
    full, common = tokens // block_size, shared // block_size
    return [*range(-common, 0), *range(agent * _AGENT_BLOCKS, agent * _AGENT_BLOCKS + full - common)]
