"""Discrete-event simulation of a distributed run, in virtual time: workers, their engines, Redis and the caller.

What it knows of the program: a worker leases agents in batches, has so many of them at once, and sends one message at a
time, at multiples of the intervals that the store has; the caller has a limited number of agents submitted and not
delivered. Redis, the caller and each worker's client are queues with one server. What it knows of an engine: how long a
turn takes alone and at full load, and a straight line between the two.
"""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from batch_agent.cluster.leased_source import _MAX_BATCH, _MIN_BATCH, _ROUNDS, _SLOTS_PER_LEASE
from batch_agent.cluster.shared_store import FLUSH_INTERVAL, LAZY_FLUSH_INTERVAL, MAX_WAITING
from batch_agent.cluster.submitter import _MAX_OUTSTANDING

_SOON = 1e-9


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds, and commands of Redis."""

    command_s: float
    """Of Redis, for one command."""
    redis_agent_s: float
    """Of Redis, for what the commands hold of one agent."""
    agent_commands: float
    """With all of its facts."""
    message_commands: float
    claim_commands: float
    """Of one tool call: claimed, and completed."""
    presence_commands: float
    """Of one worker in a second, with or without work."""
    client_s: float
    """Of a worker, for one turn."""
    caller_s: float
    """For one agent: submitted and collected."""
    link_s: float = 0.0003
    """One way between two machines."""


@dataclass(frozen=True, slots=True)
class Work:
    """Agents, and the engine of one GPU."""

    turns: int
    at_once: int
    """Agents that one GPU has at once."""
    alone_s: float
    """A turn on an engine that does nothing else."""
    full_s: float
    """A turn on an engine with as many requests as `full`."""
    full: float
    tool_s: float = 0.0
    """Between two turns."""
    has_claims: bool = False
    """Whether calls are claimed, as those with effect `read` are."""
    spread: float = 0.2
    """Turns are shorter or longer by up to this share."""

    @property
    def agents_per_gpu_s(self) -> float:
        """Of a GPU that always has as many agents as it can take."""
        return self.at_once / (self.turns * self.full_s + (self.turns - 1) * self.tool_s)


@dataclass(frozen=True, slots=True)
class Cluster:
    workers: int
    gpus_per_worker: int = 1
    outstanding: int = _MAX_OUTSTANDING
    """Agents that the caller has submitted and not got back, at most."""


@dataclass(frozen=True, slots=True)
class Outcome:
    agents_per_s: float
    commands_per_agent: float
    redis: float
    """Share of its time that it is busy, as the next two."""
    caller: float
    client: float
    """The mean of all workers."""
    waiting: float
    """Share of the agents that workers could have at once, and have not."""
    wall_s: float = 0.0


class Queue:
    """First come, first served, one at a time."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self.busy_s = 0.0

    def serve(self, now: float, cost_s: float) -> float:
        """When it is done."""
        self.busy_s += cost_s
        self._free_at = max(now, self._free_at) + cost_s
        return self._free_at


class Worker:
    def __init__(self, phase: float) -> None:
        """`phase`: seconds that are added to the moments at which it sends."""
        self.phase = phase
        self.client = Queue()
        self.running = 0
        self.ending = 0
        """Agents whose ends are not stored yet."""
        self.ready = 0
        self.asking = 0
        """Requests in flight."""
        self.is_leasing = False
        self.is_sending = False
        self.due: dict[float, int] = defaultdict(int)
        """Ends of agents by the time at which they are to be sent; 0 where there are only other facts."""

    def next(self, interval: float, now: float, ahead: int) -> float:
        return ((now - self.phase) // interval + ahead) * interval + self.phase

    def take(self, now: float) -> list[int]:
        """What is to be sent now, and counts it as sent."""
        last = now + FLUSH_INTERVAL if sum(self.due.values()) >= MAX_WAITING else now + _SOON
        return [self.due.pop(due) for due in [due for due in self.due if due <= last]]


class Simulation:
    def __init__(self, cluster: Cluster, work: Work, costs: Costs, *, agents: int | None = None, seed: int = 0) -> None:
        """`agents`: of the whole run; None: it never ends."""
        self._cluster, self._work, self._costs = cluster, work, costs
        self._random = Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._now = 0.0
        self._redis, self._caller = Queue(), Queue()
        self._workers = [Worker(self._random.uniform(0, FLUSH_INTERVAL)) for _ in range(cluster.workers)]
        self._slots = work.at_once * cluster.gpus_per_worker
        self._unsubmitted = math.inf if agents is None else agents
        self._submitted = 0
        """Jobs that nobody has leased."""
        self._outstanding = 0
        self._idle: deque[Worker] = deque()
        self._commands = 0.0
        self._ended = 0
        self._last_end = 0.0

    def run(self) -> Outcome:
        """To the last agent."""
        self._begin()
        while self._events and (self._outstanding or self._unsubmitted):
            self._step()
        return self._outcome(0.0, 0, 0.0, 0.0, 0.0, 0.0)

    def steady(self, warm_up_s: float, seconds: float) -> Outcome:
        """What happens in so many seconds, after the run has come up to speed."""
        self._begin()
        self._until(warm_up_s)
        before = (self._ended, self._commands, self._redis.busy_s, self._caller.busy_s, self._client_s())
        self._until(warm_up_s + seconds)
        return self._outcome(warm_up_s, *before)

    def _outcome(
        self, since: float, ended: int, commands: float, redis_s: float, caller_s: float, client_s: float
    ) -> Outcome:
        agents = max(1, self._ended - ended)
        seconds = (self._last_end if math.isfinite(self._unsubmitted) else self._now) - since
        free = sum(self._slots - worker.running for worker in self._workers)
        return Outcome(
            agents_per_s=agents / seconds,
            commands_per_agent=(self._commands - commands) / agents,
            redis=min(1.0, (self._redis.busy_s - redis_s) / seconds),
            caller=min(1.0, (self._caller.busy_s - caller_s) / seconds),
            client=min(1.0, (self._client_s() - client_s) / seconds / len(self._workers)),
            waiting=free / (self._slots * len(self._workers)),
            wall_s=seconds,
        )

    def _client_s(self) -> float:
        return sum(worker.client.busy_s for worker in self._workers)

    def _begin(self) -> None:
        self._submit()
        for number, worker in enumerate(self._workers):
            phase = number / len(self._workers)
            self._at(phase, self._stay_present)
            self._at(phase * FLUSH_INTERVAL, partial(self._fill, worker))

    def _until(self, end: float) -> None:
        while self._events[0][0] < end:
            self._step()
        self._now = end

    def _step(self) -> None:
        self._now, _, happen = heapq.heappop(self._events)
        happen()

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, happen))

    def _ask_redis(self, commands: float, agents: int = 0) -> float:
        """When the answer is there. `agents`: those that end with it."""
        link = self._costs.link_s
        self._commands += commands
        seconds = commands * self._costs.command_s + agents * self._costs.redis_agent_s
        return self._redis.serve(self._now + link, seconds) + link

    def _stay_present(self) -> None:
        self._ask_redis(self._costs.presence_commands)
        self._at(self._now + 1.0, self._stay_present)

    def _submit(self) -> None:
        """Fills the caller's window."""
        number = int(min(self._unsubmitted, self._cluster.outstanding - self._outstanding))
        self._unsubmitted -= number
        self._outstanding += number
        self._submitted += number
        for _ in range(min(number, len(self._idle))):
            self._lease(self._idle.popleft())

    def _fill(self, worker: Worker) -> None:
        while worker.ready and self._has_room(worker):
            worker.ready -= 1
            worker.running += 1
            self._start_turn(worker, 1)
        if self._has_room(worker) and not worker.is_leasing:
            self._lease(worker)

    def _has_room(self, worker: Worker) -> bool:
        """An agent that has ended leaves its slot before its end is stored."""
        return worker.running < self._slots and worker.running + worker.ending < 2 * self._slots

    def _lease(self, worker: Worker) -> None:
        worker.is_leasing = True
        self._at(self._ask_redis(self._costs.message_commands), lambda: self._leased(worker))

    def _leased(self, worker: Worker) -> None:
        most = min(_MAX_BATCH, max(_MIN_BATCH, self._slots // _SLOTS_PER_LEASE))
        share = math.ceil(self._outstanding / (_ROUNDS * len(self._workers)))
        number = min(most, max(1, share), self._submitted)
        if not number:  # it waits for work with its lease open
            self._idle.append(worker)
            return
        worker.is_leasing = False
        self._submitted -= number
        worker.ready += number
        self._fill(worker)

    def _start_turn(self, worker: Worker, turn: int) -> None:
        self._at(worker.client.serve(self._now, self._costs.client_s), lambda: self._send(worker, turn))

    def _send(self, worker: Worker, turn: int) -> None:
        work = self._work
        worker.asking += 1
        load = worker.asking / self._cluster.gpus_per_worker / work.full
        seconds = work.alone_s + (work.full_s - work.alone_s) * load
        seconds *= 1 + self._random.uniform(-work.spread, work.spread)
        self._at(self._now + seconds, lambda: self._answered(worker, turn))

    def _answered(self, worker: Worker, turn: int) -> None:
        worker.asking -= 1
        if turn == self._work.turns:
            due = worker.next(FLUSH_INTERVAL, self._now, 1)
            worker.due[due] += 1
            worker.running -= 1
            worker.ending += 1
            self._fill(worker)
            if sum(worker.due.values()) >= MAX_WAITING:
                self._flush(worker)
        else:
            due = worker.next(LAZY_FLUSH_INTERVAL, self._now, 2)
            worker.due[due] += 0
            self._call_tool(worker, turn + 1)
        self._at(due, lambda: self._flush(worker))

    def _call_tool(self, worker: Worker, then: int) -> None:
        if not self._work.has_claims:
            self._at(self._now + self._work.tool_s, lambda: self._start_turn(worker, then))
            return
        half = self._costs.claim_commands / 2

        def complete() -> None:
            self._at(self._ask_redis(half), lambda: self._start_turn(worker, then))

        self._at(self._ask_redis(half) + self._work.tool_s, complete)

    def _flush(self, worker: Worker) -> None:
        """One message at a time: what becomes due meanwhile goes with the next."""
        if worker.is_sending:
            return
        counts = worker.take(self._now)
        if not counts:
            return
        ends = sum(counts)
        worker.is_sending = True
        commands = self._costs.message_commands + self._costs.agent_commands * ends
        self._at(self._ask_redis(commands, ends), lambda: self._stored(worker, ends))

    def _stored(self, worker: Worker, ends: int) -> None:
        worker.is_sending = False
        worker.ending -= ends
        if ends:
            self._last_end = self._now
            arrives = self._now + self._costs.link_s
            self._at(self._caller.serve(arrives, ends * self._costs.caller_s), lambda: self._delivered(ends))
        self._fill(worker)
        self._flush(worker)

    def _delivered(self, agents: int) -> None:
        self._outstanding -= agents
        self._ended += agents
        self._submit()
