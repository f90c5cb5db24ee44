"""Routing over many endpoints that come and go: hit rate and balance, beside least-loaded and hashing.

    python -m benchmarks.routing

The real routing with simulated engines, in virtual time. An engine computes the prompt tokens that its cache lacks, one
request after the other, and generates all answers at once. Its cache holds 40 contexts, the least recently used go
first. Agents have four turns of 1,500 to 3,000 tokens and share 1,000 tokens with others of their group; groups are of
unequal size. With churn, 2 % of the endpoints (one of 16) are replaced each second of the run, at once and without
draining: their requests fail, and are sent again. `cpu_s` is that of the whole simulation.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from random import Random
from statistics import mean
from time import process_time
from typing import Any, Literal, Protocol

from batch_agent.schedule.endpoints.routing import Routing
from benchmarks import report

Policy = Literal["batch_agent", "least_loaded", "hash_agent", "hash_group"]
POLICIES: tuple[Policy, ...] = ("batch_agent", "least_loaded", "hash_agent", "hash_group")
ENDPOINTS = (16, 64, 1000)
AGENTS_PER_ENDPOINT = {16: 24, 64: 24, 1000: 8}
ACTIVE_PER_ENDPOINT = 8
TURNS, SHARED, FIRST, GROWTH = 4, 1000, 1500, 500
PREFILL_TOKENS_PER_S, ANSWER_S, TOOL_S = 10_000.0, 1.5, (0.2, 2.0)
CACHED_CONTEXTS = 40
CHURN = 0.02


class Chooser(Protocol):
    def choose(self, agent: int, group: int, now: float) -> int: ...
    def sent(self, endpoint: int, now: float) -> int: ...
    def ended(self, ticket: int, endpoint: int, now: float, *, is_answered: bool) -> None: ...
    def joined(self, endpoint: int) -> None: ...
    def left(self, endpoint: int) -> None: ...


class Ours:
    """The routing of a run without residency."""

    def __init__(self, endpoints: int, random: Random) -> None:
        self._routing = Routing([str(each) for each in range(endpoints)])
        self._random = random

    def choose(self, agent: int, group: int, now: float) -> int:
        draw = self._random.random(), self._random.random()
        chosen = self._routing.choose(1.0, now, prefixes=(f"group {group}",), origin=agent, draw=draw)
        assert chosen is not None
        return chosen

    def sent(self, endpoint: int, now: float) -> int:
        return self._routing.sent(endpoint, 1.0, now)

    def ended(self, ticket: int, endpoint: int, now: float, *, is_answered: bool) -> None:
        if is_answered:
            self._routing.done(ticket, now)
        else:
            self._routing.abandoned(ticket, now)

    def joined(self, endpoint: int) -> None:
        assert self._routing.add(str(endpoint)) == endpoint

    def left(self, endpoint: int) -> None:
        self._routing.drain(endpoint)
        self._routing.leave(endpoint)


class Plain:
    """Fewest requests in flight, or rendezvous hashing by agent or by group."""

    def __init__(self, policy: Policy, endpoints: int) -> None:
        self._policy = policy
        self._load = dict.fromkeys(range(endpoints), 0)
        self._hashed: dict[int, int] = {}

    def choose(self, agent: int, group: int, now: float) -> int:
        if self._policy == "least_loaded":
            return min(self._load, key=self._load.__getitem__)
        key = agent if self._policy == "hash_agent" else group
        if self._hashed.get(key) not in self._load:
            self._hashed[key] = max(self._load, key=lambda each: _weight(key, each))
        return self._hashed[key]

    def sent(self, endpoint: int, now: float) -> int:
        self._load[endpoint] += 1
        return 0

    def ended(self, ticket: int, endpoint: int, now: float, *, is_answered: bool) -> None:
        if endpoint in self._load:
            self._load[endpoint] -= 1

    def joined(self, endpoint: int) -> None:
        self._load[endpoint] = 0
        for key, home in self._hashed.items():  # rendezvous hashing: the newcomer takes its share
            if _weight(key, endpoint) > _weight(key, home):
                self._hashed[key] = endpoint

    def left(self, endpoint: int) -> None:
        del self._load[endpoint]


def _weight(key: int, endpoint: int) -> int:
    mixed = (key * 0x9E3779B97F4A7C15 ^ (endpoint + 1) * 0xC2B2AE3D27D4EB4F) & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    return mixed ^ mixed >> 32


@dataclass
class Engine:
    free_at: float = 0.0
    computed: int = 0
    cached: "OrderedDict[tuple[str, int], int]" = field(default_factory=OrderedDict)
    in_flight: dict[int, tuple[int, int, int, float]] = field(default_factory=dict)
    """Agent, turn, ticket and start of each request."""

    def answer_at(self, agent: int, group: int, tokens: int, now: float) -> tuple[float, int]:
        """When the answer is complete, and the prompt tokens that were in the cache."""
        hit = max(self.cached.get(("agent", agent), 0), self.cached.get(("group", group), 0))
        self.free_at = max(self.free_at, now) + (tokens - hit) / PREFILL_TOKENS_PER_S
        self.computed += tokens - hit
        for key, held in ((("agent", agent), tokens), (("group", group), SHARED)):
            self.cached[key] = held
            self.cached.move_to_end(key)
        while len(self.cached) > CACHED_CONTEXTS:
            self.cached.popitem(last=False)
        return self.free_at + ANSWER_S, hit


class Simulation:
    """One run: agents are started as others end, each with its turns and tools."""

    def __init__(self, policy: Policy, endpoints: int, churn: float) -> None:
        self._random = Random(7)
        self._chooser: Chooser = Ours(endpoints, self._random) if policy == "batch_agent" else Plain(policy, endpoints)
        self._engines = {each: Engine() for each in range(endpoints)}
        self._made = endpoints
        self._churn = churn
        self._left = AGENTS_PER_ENDPOINT[endpoints] * endpoints
        self._agents = iter(range(self._left))
        groups = 2 * endpoints
        self._groups = self._random.choices(range(groups), [1 / (1 + each) for each in range(groups)], k=self._left)
        self._events: list[tuple[float, int, str, tuple[Any, ...]]] = []
        self._order = count()
        self._prompt = self._hit = self._moved = self._repeated = 0
        self._homes: dict[int, int] = {}
        self._latencies: list[float] = []

    def run(self) -> dict[str, Any]:
        now, cpu = 0.0, process_time()
        for _ in range(ACTIVE_PER_ENDPOINT * len(self._engines)):
            self._start(now)
        if self._churn:
            self._at(1.0, "replace")
        while self._left:
            now, _, name, given = heapq.heappop(self._events)
            getattr(self, f"_{name}")(now, *given)
        computed = [each.computed for each in self._engines.values()]
        latencies = sorted(self._latencies)
        return {
            "hit_rate": round(self._hit / self._prompt, 3),
            "wall_s": round(now, 1),
            "turn_p50_s": round(latencies[len(latencies) // 2], 2),
            "turn_p99_s": round(latencies[len(latencies) * 99 // 100], 2),
            "most_work_to_mean": round(max(computed) / mean(computed), 2),
            "moved": round(self._moved / len(latencies), 3),
            "repeated": self._repeated,
            "cpu_s": round(process_time() - cpu, 1),
        }

    def _at(self, when: float, name: str, *given: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), name, given))

    def _start(self, now: float) -> None:
        agent = next(self._agents, None)
        if agent is not None:
            self._send(now, agent, 0, now)

    def _send(self, now: float, agent: int, turn: int, since: float) -> None:
        group = self._groups[agent]
        endpoint = self._chooser.choose(agent, group, now)
        self._moved += self._homes.get(agent, endpoint) != endpoint
        self._homes[agent] = endpoint
        ticket = self._chooser.sent(endpoint, now)
        tokens = FIRST + turn * GROWTH
        engine, number = self._engines[endpoint], next(self._order)
        done, hit = engine.answer_at(agent, group, tokens, now)
        engine.in_flight[number] = agent, turn, ticket, since
        self._prompt += tokens
        self._hit += hit
        self._at(done, "answered", endpoint, number)

    def _answered(self, now: float, endpoint: int, number: int) -> None:
        engine = self._engines.get(endpoint)
        if engine is None:  # it died meanwhile
            return
        agent, turn, ticket, since = engine.in_flight.pop(number)
        self._chooser.ended(ticket, endpoint, now, is_answered=True)
        self._latencies.append(now - since)
        if turn + 1 < TURNS:
            wait = self._random.uniform(*TOOL_S)
            self._at(now + wait, "send", agent, turn + 1, now + wait)
            return
        self._left -= 1
        self._start(now)

    def _replace(self, now: float) -> None:
        for _ in range(max(1, round(self._churn * len(self._engines)))):
            gone = self._random.choice(list(self._engines))
            lost = self._engines.pop(gone).in_flight.values()
            for _, _, ticket, _ in lost:
                self._chooser.ended(ticket, gone, now, is_answered=False)
            self._chooser.left(gone)
            self._repeated += len(lost)
            self._engines[self._made] = Engine()
            self._chooser.joined(self._made)
            self._made += 1
            for agent, turn, _, since in lost:
                self._send(now, agent, turn, since)
        self._at(now + 1.0, "replace")


def main() -> None:
    numbers: dict[str, Any] = {}
    for endpoints in ENDPOINTS:
        for churn in (0.0, CHURN):
            replaced = max(1, round(churn * endpoints)) if churn else 0
            case = numbers[f"{endpoints} endpoints, {replaced} replaced each second"] = dict[str, Any]()
            for policy in POLICIES:
                case[policy] = Simulation(policy, endpoints, churn).run()
                print(endpoints, churn, policy, case[policy], flush=True)
        report.write("routing", {"agents_per_endpoint": AGENTS_PER_ENDPOINT, "routing": numbers})


if __name__ == "__main__":
    main()
