"""Lists of prompts over pools of endpoints, beside one request for each prompt, and beside Aurora Swarm.

    python -m benchmarks.pools [--peer FOLDER]                          # on simulated engines
    python -m benchmarks.pools --vllm http://127.0.0.1:8000             # on a real one

FOLDER has Aurora Swarm's package `aurora_swarm`, which needs openai; nothing is installed or fetched here. Ways:

- lists, alone: `VLLMPool.send_all_batched` and `send_all` with nothing set.
- aurora_lists, aurora_alone: the same methods of Aurora Swarm's VLLMPool. It gets room for 1,024 requests at once (its
  own limit is 512, for all endpoints together), because it would leave half of four engines unused without. It hands
  over all results at the end: that is when its first one is there.
- raw_lists: ours without the chat template, which Aurora's lists do not have either. Prompts are shorter without it, on
  a real engine by more than half, and of short answers the prompt is most of the work.

Engines run 256 prompts at once, as fast as a 3B model on a good card; a request costs their front end 2 ms. Each is a
process of its own and none has seen a prompt before. They send 16 tokens in an event: one at a time would keep two
cores busy with `alone`. `client_cpu` and `server_cpu` (of the busiest) are shares of a core, and `load` is that of
the machine: the numbers are of waiting for engines, not of a busy machine.

Work: 1,000 answers of 136 tokens each (equal), 1,000 of 16 to 256, drawn evenly (varied), 4,000 of these (many). `x4`
is of so many endpoints, `slow` has three and one that is four times slower; `poisoned` has a prompt for which a server
refuses a list; of `killed` a server is gone after 40 % of the time. `engines_s` is what engines need that have an equal
share of the prompts from the start, with nothing in between: with 250 on each all run at once, and the longest answer
says when it is over. Wall times have the opening of the pool in them; targets are of medians.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from batch_agent import Response, VLLMPool
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.sim.kv_engine.sequence import Sequence as Tokens
from batch_agent.sim.kv_engine.sim_engine import SimEngine
from benchmarks import report

ENGINE = SimConfig(
    step_base_ms=10,
    step_us_per_seq=12.5,
    prefill_us_per_token=50,
    step_ns_per_kv_token=190,
    request_overhead_ms=2,
    chunk_tokens=16,
)
SLOW = replace(ENGINE, slowdown=4.0)
PEER = "aurora_swarm"
PEER_ROOM = 1_024
MOST_TOKENS = 400
KILLED_AT = 0.4
NOISE = 0.03
"""What medians of one thing differ by, from run to run."""
VLLM_PROMPTS, VLLM_TOKENS = 64, 16

Numbers = dict[str, float]
FirstIs = Callable[[], None]
Way = Callable[[Sequence[str], Sequence[str], int, FirstIs], Awaitable[list[bool]]]
"""Takes addresses, prompts, the most tokens of an answer, and whom to tell of the first; says which have an answer."""


@dataclass(frozen=True, slots=True)
class Work:
    """Answers from a number of tokens to another, drawn from the number of the prompt."""

    prompts: int
    tokens: tuple[int, int]
    poisoned: int | None = None
    """The prompt that no server takes."""

    def sizes(self) -> list[int]:
        return [Random(f"answer {number}").randint(*self.tokens) for number in range(self.prompts)]

    def texts(self) -> list[str]:
        orders = [{"tokens": size} for size in self.sizes()]
        told = [json.dumps({"fault": "400"} if at == self.poisoned else order) for at, order in enumerate(orders)]
        return [f"[[sim: {order}]] Note {at}: what is it about?" for at, order in enumerate(told)]


@dataclass(frozen=True, slots=True)
class Case:
    work: Work
    engines: tuple[SimConfig, ...]
    ways: tuple[str, ...] = ()
    """Those that are measured; none: all."""
    is_killed: bool = False

    def engines_s(self) -> float:
        """Seconds that the engines need for equal shares which they have from the start."""
        sizes, count = self.work.sizes(), len(self.engines)
        return max(_engine_s(sizes[at::count], engine) for at, engine in enumerate(self.engines))


def _engine_s(sizes: Sequence[int], config: SimConfig) -> float:
    engine, now = SimEngine(config), 0.0
    for size in sizes:
        engine.add(Tokens(prompt_tokens=16, output_tokens=size), 0.0)
    engine.advance(0.0)
    while engine.wake_at is not None:
        now = engine.wake_at
        engine.advance(now)
    return now


async def lists(urls: Sequence[str], prompts: Sequence[str], most: int, first_is: FirstIs) -> list[bool]:
    async with VLLMPool(urls, max_tokens=most) as pool:
        return _answered(await pool.send_all_batched(prompts, on_response=lambda response: first_is()))


async def raw_lists(urls: Sequence[str], prompts: Sequence[str], most: int, first_is: FirstIs) -> list[bool]:
    async with VLLMPool(urls, max_tokens=most, raw=True) as pool:
        return _answered(await pool.send_all_batched(prompts, on_response=lambda response: first_is()))


async def alone(urls: Sequence[str], prompts: Sequence[str], most: int, first_is: FirstIs) -> list[bool]:
    async with VLLMPool(urls, max_tokens=most) as pool:
        return _answered(await pool.send_all(prompts, on_response=lambda response: first_is()))


async def aurora_lists(urls: Sequence[str], prompts: Sequence[str], most: int, first_is: FirstIs) -> list[bool]:
    async with _aurora(urls, most) as pool:
        return _answered(await pool.send_all_batched(list(prompts)))


async def aurora_alone(urls: Sequence[str], prompts: Sequence[str], most: int, first_is: FirstIs) -> list[bool]:
    async with _aurora(urls, most) as pool:
        return _answered(await pool.send_all(list(prompts)))


def _aurora(urls: Sequence[str], most: int) -> Any:
    swarm = import_module(PEER)
    parts = [urlsplit(url) for url in urls]
    endpoints = [swarm.AgentEndpoint(part.hostname, part.port) for part in parts]
    return swarm.VLLMPool(endpoints, model=_model(urls[0]), max_tokens=most, concurrency=PEER_ROOM)


def _model(url: str) -> str:
    return str(json.loads(_get(f"{url}/v1/models"))["data"][0]["id"])


def _answered(responses: Sequence[Response]) -> list[bool]:
    """One that was cut off has an answer too; who failed has none."""
    return [bool(response.text) for response in responses]


OURS: dict[str, Way] = {"lists": lists, "alone": alone, "raw_lists": raw_lists}
THEIRS: dict[str, Way] = {"aurora_lists": aurora_lists, "aurora_alone": aurora_alone}

EQUAL, VARIED, MANY = Work(1_000, (136, 136)), Work(1_000, (16, 256)), Work(4_000, (16, 256))
SLOWED = (ENGINE, ENGINE, ENGINE, SLOW)
ONLY_LISTS, BOTH_LISTS = ("lists",), ("lists", "aurora_lists")
EACH = ("lists", "alone", "aurora_lists", "aurora_alone")
CASES = {
    **{f"equal x{count}": Case(EQUAL, (ENGINE,) * count) for count in (1, 2, 4)},
    "equal x3": Case(EQUAL, (ENGINE,) * 3, ONLY_LISTS),
    "equal slow": Case(EQUAL, SLOWED, BOTH_LISTS),
    **{f"varied x{count}": Case(VARIED, (ENGINE,) * count) for count in (1, 2, 4)},
    "varied x3": Case(VARIED, (ENGINE,) * 3, ONLY_LISTS),
    "varied slow": Case(VARIED, SLOWED, BOTH_LISTS),
    **{f"many x{count}": Case(MANY, (ENGINE,) * count, ONLY_LISTS) for count in (1, 2, 3)},
    "many x4": Case(MANY, (ENGINE,) * 4),
    "many slow": Case(MANY, SLOWED, ONLY_LISTS),
    "poisoned": Case(replace(VARIED, poisoned=300), (ENGINE,) * 4, EACH),
    "killed": Case(VARIED, (ENGINE,) * 4, EACH, is_killed=True),
}


def measure(way: Way, case: Case) -> Numbers:
    """One run on servers of its own."""
    with ExitStack() as stack:
        sims = [stack.enter_context(SimServer(engine, Script(tool_turns=0))) for engine in case.engines]
        before, load, cpu = _sums(sims), os.getloadavg()[0], time.process_time()
        busy = [sim.cpu_seconds() for sim in sims]
        wall, first, answered = asyncio.run(_timed(way, case, sims))
        left = sims[:-1] if case.is_killed else sims
        done = _sums(left)
        return {
            "wall_s": round(wall, 3),
            "first_s": round(first, 3),
            "failed": answered.count(False),
            "requests": done["sim:http_requests_total"] - before["sim:http_requests_total"],
            "prompt_tokens": done["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"],
            "generated_tokens": done["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"],
            "client_cpu": round((time.process_time() - cpu) / wall, 3),
            "server_cpu": round(max(sim.cpu_seconds() - was for sim, was in zip(left, busy, strict=False)) / wall, 3),
            "load": round(load, 2),
        }


async def _timed(way: Way, case: Case, sims: Sequence[SimServer]) -> tuple[float, float, list[bool]]:
    prompts, firsts = case.work.texts(), list[float]()

    async def kill() -> None:
        await asyncio.sleep(KILLED_AT * case.engines_s())
        os.kill(sims[-1].pid, signal.SIGKILL)

    async with asyncio.TaskGroup() as group:
        started = time.perf_counter()
        killing = group.create_task(kill()) if case.is_killed else None
        urls = [sim.url for sim in sims]
        answered = await way(urls, prompts, MOST_TOKENS, lambda: firsts.append(time.perf_counter() - started))
        wall = time.perf_counter() - started
        if killing is not None and not killing.done():
            raise SystemExit("It was over before the server was killed.")
    return wall, min(firsts, default=wall), answered


def _sums(sims: Sequence[SimServer]) -> dict[str, float]:
    """What the servers have counted, together."""
    pages = [sim.metrics() for sim in sims]
    return {name: sum(page[name] for page in pages) for name in pages[0]}


class Rounds:
    """What was measured, by case and way; prints each as it comes."""

    def __init__(self) -> None:
        self.taken: dict[str, dict[str, list[Numbers]]] = {}

    def add(self, case: str, way: str, numbers: Numbers) -> None:
        if not self.taken:
            print(f"{'':>26}" + "".join(f"{name:>17}" for name in numbers))
        self.taken.setdefault(case, {}).setdefault(way, []).append(numbers)
        print(f"{case:>12} {way:>13}" + "".join(f"{value:>17,.2f}" for value in numbers.values()), flush=True)

    def median(self, case: str, way: str, name: str = "wall_s") -> float:
        return statistics.median(numbers[name] for numbers in self.taken[case][way])

    def medians(self) -> dict[str, dict[str, Numbers]]:
        return {
            case: {way: {name: self.median(case, way, name) for name in taken[0]} for way, taken in ways.items()}
            for case, ways in self.taken.items()
        }

    def gains(self) -> dict[str, Numbers]:
        """How many times longer the other ways took than lists, by case."""
        return {
            case: {way: round(self.median(case, way) / self.median(case, "lists"), 3) for way in ways if way != "lists"}
            for case, ways in self.taken.items()
            if len(ways) > 1
        }

    def scaling(self, cases: Mapping[str, Case]) -> dict[str, Numbers]:
        """How many times faster than one endpoint more of them are, beside what the engines alone allow."""
        found: dict[str, Numbers] = {}
        for case, ways in self.taken.items():
            work, _, count = case.rpartition(" x")
            if not work or count == "1":
                continue
            one = f"{work} x1"
            both = [way for way in ways if way in self.taken[one]]
            found[case] = {way: round(self.median(one, way) / self.median(case, way), 3) for way in both}
            found[case]["engines"] = round(cases[one].engines_s() / cases[case].engines_s(), 3)
        return found


def one_round(rounds: Rounds, cases: Mapping[str, Case], ways: Mapping[str, Way]) -> None:
    for name, case in cases.items():
        for way, run in ways.items():
            if not case.ways or way in case.ways:
                rounds.add(name, way, measure(run, case))


def targets(rounds: Rounds, cases: Mapping[str, Case]) -> list[dict[str, Any]]:
    """What is wanted of lists, and what was found."""
    scaling, gains = rounds.scaling(cases), rounds.gains()
    found: list[dict[str, Any]] = []

    def want(what: str, value: float, least: float | None, most: float | None) -> None:
        is_met = (least is None or value >= least) and (most is None or value <= most)
        found.append({"what": what, "least": least, "most": most, "found": value, "is_met": is_met})

    for case in ("equal x4", "varied x4"):
        want(f"{case}: requests", rounds.median(case, "lists", "requests"), 4, 40)
    for case, others in gains.items():
        for way in [way for way in others if " x" in case and way != "raw_lists"]:
            want(f"{case}: time of {way}, against lists", others[way], 1.0, None)
        if " x" in case and "aurora_lists" in others:
            like = round(others["aurora_lists"] / others["raw_lists"], 3)
            want(f"{case}: time of aurora_lists, against raw_lists", like, 1.0, None)
    for work in ("equal", "many"):
        want(f"{work}: 2 endpoints against 1", scaling[f"{work} x2"]["lists"], 1.9, None)
        want(f"{work}: 4 endpoints against 1", scaling[f"{work} x4"]["lists"], 3.7, None)
    for work in ("equal", "varied", "many"):
        cost = round(rounds.median(f"{work} slow", "lists") / rounds.median(f"{work} x3", "lists"), 3)
        want(f"{work}: time with a slow one more, against 3 alone", cost, None, 1 + NOISE)
    want("poisoned: prompts that failed", rounds.median("poisoned", "lists", "failed"), 1, 1)
    want("killed: prompts that failed", rounds.median("killed", "lists", "failed"), None, 0)
    return found


def simulated(ways: Mapping[str, Way], count: int) -> dict[str, Any]:
    rounds = Rounds()
    for _ in range(count):
        one_round(rounds, CASES, ways)
    for each in targets(rounds, CASES):
        print(f"{each['what']}: {each['found']} ({'pass' if each['is_met'] else 'FAIL'})")
    return {
        "engine": asdict(ENGINE),
        "rounds": count,
        "engines_s": {name: round(case.engines_s(), 3) for name, case in CASES.items() if not case.is_killed},
        "medians": rounds.medians(),
        "gains": rounds.gains(),
        "scaling": rounds.scaling(CASES),
        "targets": targets(rounds, CASES),
        "all_rounds": rounds.taken,
    }


def on_vllm(url: str, ways: Mapping[str, Way], count: int) -> dict[str, Any]:
    """Short answers from one real server; no prompt is asked twice."""
    rounds = Rounds()
    for number in range(count):
        for place, (way, run) in enumerate(ways.items()):
            rounds.add("vllm", way, measure_vllm(url, run, f"{number}.{place}"))
    shape = {"prompts": VLLM_PROMPTS, "max_tokens": VLLM_TOKENS, "rounds": count}
    engine = f"vllm {json.loads(_get(f'{url}/version'))['version']}"
    return {"engine": engine, **shape, "medians": rounds.medians(), "gains": rounds.gains(), "all_rounds": rounds.taken}


def measure_vllm(url: str, way: Way, opening: str) -> Numbers:
    prompts = [f"{opening} {at}: name things that are like the number {at}." for at in range(VLLM_PROMPTS)]
    before, firsts = _http_requests(url), list[float]()
    started = time.perf_counter()
    said = asyncio.run(_asked(way([url], prompts, VLLM_TOKENS, lambda: firsts.append(time.perf_counter() - started))))
    wall = time.perf_counter() - started
    return {
        "wall_s": round(wall, 3),
        "first_s": round(min(firsts, default=wall), 3),
        "empty": said.count(False),
        "requests": _http_requests(url) - before,
    }


async def _asked(work: Awaitable[list[bool]]) -> list[bool]:
    return await work


def _http_requests(url: str) -> float:
    """For answers, as the server counts them."""
    lines = _get(f"{url}/metrics").splitlines()
    wanted = [line for line in lines if line.startswith("http_requests_total{") and "completions" in line]
    return sum(float(line.rpartition(" ")[2]) for line in wanted)


def _get(url: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as response:
        return str(response.read().decode())


def kept(path: Path) -> dict[str, Any]:
    """Parts that were measured before, each with its commit."""
    if not path.exists():
        return {}
    old = json.loads(path.read_text())
    when = {"commit": old["commit"], "date": old["date"]}
    return {part: {**when, **old[part]} for part in ("simulated", "vllm") if part in old}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pools", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peer", type=Path, help="a folder with Aurora Swarm's package")
    parser.add_argument("--peer-commit", help="of what is in that folder, to be written down")
    parser.add_argument("--vllm", metavar="URL", help="measure on this server instead of simulated ones")
    parser.add_argument("--rounds", type=int, default=3, help="of 8 minutes each")
    parser.add_argument("--commit", help="of the source that is measured, if it is a copy")
    parser.add_argument("--out", type=Path, default=report.RESULTS / "pools.json")
    options = parser.parse_args()
    ways, peer = dict(OURS), "not run: no --peer was given"
    if options.peer is not None:
        sys.path.insert(0, str(options.peer))
        import_module(PEER)
        ways |= THEIRS
        peer = f"Aurora Swarm {options.peer_commit or ''} with openai {version('openai')}, aiohttp {version('aiohttp')}"
    numbers = on_vllm(options.vllm, ways, options.rounds) if options.vllm else simulated(ways, options.rounds)
    part = {"vllm" if options.vllm else "simulated": {"peer": peer, **numbers}}
    print(report.write("pools", {**kept(options.out), **part}, options.out, commit=options.commit))


if __name__ == "__main__":
    main()
