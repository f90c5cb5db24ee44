"""Coding agents over one server: what the gateway makes of their prompts, and what an agent costs.

    python -m benchmarks.coding prefix http://127.0.0.1:8000     # a vLLM with prefix caching, which nobody else uses
    python -m benchmarks.coding cost                             # on the simulated engine

Both need OpenCode: `npm install -g opencode-ai`, or `bash scripts/engines/install.sh`.
"""

import argparse
import asyncio
import re
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from scripts.engines.layout import engines_root

from batch_agent import BatchAgent, OpenCodeRuntime, Results
from batch_agent.sim import Script, SimConfig, SimServer
from benchmarks import report

AGENTS = 8
TASK = "Read the file {name} and say in one short sentence what it is about."
LEAN = "You are a careful assistant who works on the files of a project. Use the read tool to look at a file."
_SAMPLES_A_SECOND = 4
Ways = dict[str, Callable[[], Coroutine[Any, Any, dict[str, Any]]]]


def opencode() -> str:
    """The installed one; else that of the live tests."""
    return shutil.which("opencode") or str(engines_root() / "opencode" / "node_modules" / ".bin" / "opencode")


def project(folder: Path, agents: int) -> list[dict[str, str]]:
    """A folder with a file for each agent, and the inputs."""
    for number in range(agents):
        (folder / f"note-{number}.txt").write_text(f"Note {number}: the kettle in room {number} is broken.\n")
    (folder / "AGENTS.md").write_text("The notes are short. Never change them.\n" * 20)
    return [{"name": f"note-{number}.txt"} for number in range(agents)]


async def work(runtime: OpenCodeRuntime, inputs: list[dict[str, str]], **options: Any) -> Results:
    results: Results = await BatchAgent.run(
        task=TASK, inputs=inputs, runtime=runtime, max_agents=len(inputs), **options
    )
    return results


async def counters(url: str) -> tuple[float, float]:
    """Tokens of prompts that the server looked up in its prefix cache so far, and found there."""
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(f"{url}/metrics") as page:
        text = await page.text()
    return _total(text, "queries"), _total(text, "hits")


def _total(page: str, name: str) -> float:
    return sum(float(each) for each in re.findall(rf"^vllm:prefix_cache_{name}_total\S* (\S+)$", page, re.M))


async def prefix(url: str, *, gateway: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        inputs = project(Path(folder), AGENTS)
        runtime = OpenCodeRuntime(
            backend=url.replace("http://", "vllm://"),
            workdir=folder,
            tools=("read",),
            prompt=LEAN,
            gateway=gateway,
            command=opencode(),
        )
        before, started = await counters(url), time.perf_counter()
        results = await work(runtime, inputs, max_tokens=48, temperature=0.0, timeout_per_agent=900)
        seconds, after = time.perf_counter() - started, await counters(url)
    queries, hits = (now - then for now, then in zip(after, before, strict=True))
    return {
        "wall_s": round(seconds, 1),
        "agents_ok": sum(result.ok for result in results),
        "prompt_tokens": int(queries),
        "found_in_cache": round(hits / queries, 3),
    }


@contextmanager
def watching_memory() -> Iterator[list[float]]:
    """Megabytes of all processes below this one at once, sampled; what they share is counted once."""
    samples, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(1 / _SAMPLES_A_SECOND):
            samples.append(sum(map(_megabytes, _below(str(threading.main_thread().native_id)))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield samples
    finally:
        over.set()
        watcher.join()


def _below(pid: str) -> Iterator[str]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield child
        yield from _below(child)


def _megabytes(pid: str) -> float:
    try:
        return int(re.findall(r"Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())[0]) / 1024
    except (OSError, IndexError):
        return 0.0


async def cost(mode: Any, agents: int) -> dict[str, Any]:
    """On a model that reads a file, and then answers."""
    with tempfile.TemporaryDirectory() as folder, SimServer(SimConfig(zero_latency=True), Script()) as sim:
        inputs = project(Path(folder), agents)
        runtime = OpenCodeRuntime(
            backend=sim.url, workdir=folder, tools=("read",), prompt=LEAN, mode=mode, command=opencode()
        )
        with watching_memory() as samples:
            used, started = _cpu(resource.RUSAGE_CHILDREN), time.perf_counter()
            results = await work(runtime, inputs)
            seconds = time.perf_counter() - started
        return {
            "wall_s": round(seconds, 1),
            "agents_ok": sum(result.ok for result in results),
            "turns": sum(result.turns for result in results),
            "cpu_s_per_agent": round((_cpu(resource.RUSAGE_CHILDREN) - used) / agents, 2),
            "peak_mb": round(max(samples)),
        }


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: round(statistics.median(each[name] for each in rounds), 3) for name in rounds[0]}


def taken(ways: Ways, rounds: int) -> dict[str, Any]:
    """Each way in turn, so often; the medians, and every round."""
    every: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for number in range(rounds):
        names = list(ways) if number % 2 == 0 else list(ways)[::-1]
        for name in names:
            every[name].append(asyncio.run(ways[name]()))
            print(f"round {number + 1}, {name}: {every[name][-1]}", file=sys.stderr, flush=True)
    return {"medians": {name: median(each) for name, each in every.items()}, "rounds": every}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["prefix", "cost"])
    parser.add_argument("url", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if asked.part == "prefix":
        if not asked.url:
            parser.error("`prefix` needs the address of a vLLM server")
        url = asked.url.rstrip("/")
        ways: Ways = {name: partial(prefix, url, gateway=name == "gateway") for name in ("gateway", "direct")}
        found = {"agents": AGENTS, **taken(ways, asked.rounds)}
    else:
        sizes = [(mode, agents) for mode in ("serve", "process") for agents in (8, 20)]
        found = taken({f"{mode}_{agents}": partial(cost, mode, agents) for mode, agents in sizes}, asked.rounds)
    print(report.write(f"coding_{asked.part}", found))


if __name__ == "__main__":
    main()
