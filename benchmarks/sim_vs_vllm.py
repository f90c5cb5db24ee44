"""Runs on the simulated engine what was once measured on real vLLM, and prints both as JSON.

    python -m benchmarks.sim_vs_vllm

The cold burst goes over HTTP in real time. The agent workloads drive the engine alone on a virtual clock: minutes of
engine time take seconds. What the H200 did is in results/gpu_prompts.json, with its sizes; the CPU run kept only
totals, from which its sizes were inferred: see docs/simulator.md.
"""

import heapq
import http.client
import itertools
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from batch_agent.sim import SimConfig, SimServer
from batch_agent.sim.kv_engine.sequence import Sequence, SequenceProgress
from batch_agent.sim.kv_engine.sim_engine import SimEngine
from benchmarks import report

ONCE = 10**9
"""As `emit_every`: report the first token, and then only the end."""

H200 = SimConfig(
    max_model_len=16_384,
    num_blocks=16_384,
    max_num_seqs=1_024,
    max_num_batched_tokens=8_192,
    step_base_ms=5.5,
    step_us_per_seq=10,
    prefill_us_per_token=23.5,
    step_ns_per_kv_token=14,
)
CPU = SimConfig(
    max_model_len=2_048,
    num_blocks=100,
    block_size=32,
    max_num_seqs=256,
    max_num_batched_tokens=2_048,
    step_base_ms=25,
    step_us_per_seq=2_000,
    prefill_us_per_token=8_000,
    step_ns_per_kv_token=0,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Agents that each ask, wait for a tool, and ask again with all that went before.

    The next prompt spells an answer with other tokens than the model did, as real templates mostly make it: what was
    generated is not found again.
    """

    agents: int
    turns: int
    first_prompt: int
    shared_tokens: int
    answer_tokens: int
    result_tokens: int
    tool_s: tuple[float, float]
    """The shortest and the longest; what is between is drawn from the number of the agent and its turn."""

    def tool_seconds(self, agent: int, turn: int) -> float:
        return Random(f"{agent}.{turn}").uniform(*self.tool_s)


H200_WORK = Workload(
    agents=128,
    turns=4,
    first_prompt=8_014,
    shared_tokens=2_000,
    answer_tokens=150,
    result_tokens=150,
    tool_s=(1.0, 3.0),
)
CPU_WORK = Workload(
    agents=24, turns=2, first_prompt=370, shared_tokens=160, answer_tokens=40, result_tokens=40, tool_s=(5.0, 5.0)
)


class Clock:
    """A virtual clock with one engine on it."""

    def __init__(self, config: SimConfig) -> None:
        self.now = 0.0
        self.engine = SimEngine(config)
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._watchers: dict[Sequence, Callable[[SequenceProgress], None]] = {}

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now + seconds, next(self._numbers), what))

    def submit(self, sequence: Sequence, watcher: Callable[[SequenceProgress], None]) -> None:
        self._watchers[sequence] = watcher
        self._deliver()
        self.engine.add(sequence, self.now)
        self._deliver()

    def run(self) -> None:
        while self._later or self.engine.wake_at is not None:
            wake_at = self.engine.wake_at
            if self._later and (wake_at is None or self._later[0][0] <= wake_at):
                self.now, _, what = heapq.heappop(self._later)
                what()
            else:
                assert wake_at is not None
                self.now = wake_at
                self._deliver()

    def _deliver(self) -> None:
        for news in self.engine.advance(self.now):
            self._watchers[news.sequence](news)


class Crowd:
    """The agents of a workload, at most `resident` of them alive."""

    def __init__(self, clock: Clock, work: Workload, resident: int) -> None:
        self.first_token_s: list[float] = []
        self.cached: list[tuple[int, int, int]] = []
        self.ended_at: list[float] = []
        self._clock = clock
        self._work = work
        self._todo = iter(range(work.agents))
        for agent in itertools.islice(self._todo, resident):
            clock.after(0, lambda agent=agent: self._ask(agent, 0))  # type: ignore[misc]

    def _ask(self, agent: int, turn: int) -> None:
        work, size, asked_at = self._work, self._clock.engine.config.block_size, self._clock.now
        prompt = work.first_prompt + turn * (work.answer_tokens + work.result_tokens)
        shared = work.shared_tokens // size
        blocks = range((prompt + work.answer_tokens) // size)
        generated = prompt // size
        hashes = [
            hash((0 if index < shared else agent + 1, turn if index >= generated else -1, index)) for index in blocks
        ]
        sequence = Sequence(prompt, work.answer_tokens, hashes, emit_every=ONCE)

        def watch(news: SequenceProgress) -> None:
            if not news.start and turn:
                self.first_token_s.append(self._clock.now - asked_at)
            if news.finished:
                self.cached.append((turn, prompt, sequence.cached))
                self._answered(agent, turn)

        self._clock.submit(sequence, watch)

    def _answered(self, agent: int, turn: int) -> None:
        if turn + 1 < self._work.turns:
            self._clock.after(self._work.tool_seconds(agent, turn), lambda: self._ask(agent, turn + 1))
            return
        self.ended_at.append(self._clock.now)
        following = next(self._todo, None)
        if following is not None:
            self._clock.after(0, lambda: self._ask(following, 0))


def crowd(config: SimConfig, work: Workload, resident: int) -> dict[str, float]:
    clock = Clock(config)
    people = Crowd(clock, work, resident)
    clock.run()
    assert len(people.ended_at) == work.agents
    later = [(prompt, cached) for turn, prompt, cached in people.cached if turn]
    return {
        "wall_s": round(clock.now, 1),
        "first_result_s": round(min(people.ended_at), 1),
        "later_turns_ttft_p50_s": round(statistics.median(people.first_token_s), 3),
        "later_turns_cached": round(sum(cached for _, cached in later) / sum(prompt for prompt, _ in later), 3),
        "all_turns_cached": round(sum(each[2] for each in people.cached) / sum(each[1] for each in people.cached), 3),
        "computed_prompt_tokens": sum(prompt - cached for _, prompt, cached in people.cached),
        "preemptions": clock.engine.scheduler.preemptions,
    }


def cold_burst() -> dict[str, Any]:
    """Eight requests at once with a fresh prefix of 440 tokens, blocks of 128 as in vLLM's CPU default."""
    with SimServer(replace(CPU, block_size=128, num_blocks=180, prefill_us_per_token=100)) as sim:
        connections = [http.client.HTTPConnection("127.0.0.1", sim.port, timeout=30) for _ in range(8)]
        for index, connection in enumerate(connections):
            messages = [{"role": "user", "content": "prefix! " * 220 + f"question {index}"}]
            connection.request("POST", "/v1/chat/completions", json.dumps({"messages": messages, "max_tokens": 4}))
        usages = [json.loads(connection.getresponse().read())["usage"] for connection in connections]
        for connection in connections:
            connection.close()
        hits = sim.metrics()["vllm:prefix_cache_hits_total"]
    cached = sorted(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return {"cached_tokens": cached, "prefix_cache_hits_total": hits}


def h200(work: Workload) -> dict[str, Any]:
    """All at once beside the measured gather loop; and, as the simulator sees it, with as many as fit."""
    measured = json.loads((report.RESULTS / "gpu_prompts.json").read_text())["parts"]["resident"]["dispatch_all"]
    names = ("wall_s", "first_result_s", "cached_share_later_turns", "ttft_later_turns_s")
    fitting = (H200.kv_tokens * 9 // 10 - work.shared_tokens) // (
        work.first_prompt - work.shared_tokens + work.turns * work.answer_tokens + (work.turns - 1) * work.result_tokens
    )
    return {
        "workload": asdict(work),
        "all_at_once": {
            "vllm_0.26_h200": {name: measured[name] for name in names},
            "sim": crowd(H200, work, resident=work.agents),
        },
        f"{fitting}_resident": {"sim": crowd(H200, work, resident=fitting)},
    }


def main() -> None:
    numbers = {
        "cold_burst": {
            "vllm_0.32_cpu": {"cached_tokens": [0] + [384] * 7, "prefix_cache_hits_total": 2688},
            "sim": cold_burst(),
        },
        "cpu_24_agents": {
            "workload": asdict(CPU_WORK),
            "all_at_once": {
                "vllm_0.32_cpu": {"wall_s": 104.2, "later_turns_cached": 0.36, "computed_prompt_tokens": 12276},
                "sim": crowd(CPU, CPU_WORK, resident=24),
            },
            "8_resident": {
                "vllm_0.32_cpu": {"wall_s": 66.5, "later_turns_cached": 0.78, "computed_prompt_tokens": 7562},
                "sim": crowd(CPU, CPU_WORK, resident=8),
            },
        },
        "h200_128_agents": h200(H200_WORK),
    }
    print(json.dumps(numbers, indent=1))
    print(report.write("sim_vs_vllm", numbers))


if __name__ == "__main__":
    main()
