"""Runs the GPU measurements.

    python -m benchmarks.gpu serve-and-run --python PYTHON --model-root DIR --tokenizer DIR [--only resident,prefix]
    python -m benchmarks.gpu run --url http://127.0.0.1:8000 --only resident

`serve-and-run` makes the models (a shape, no weights), and starts vLLM for each part in turn. PYTHON has vLLM, found in
--vllm-path if that is given. All parts but `peers` and those of shared results take about eight minutes on an H200, and
each of these as long again; --budget ends them earlier. Parts are run in the order of --only, as far as their servers
allow; rounds after the first only where the first rounds of all other parts are expected to have their time.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import aiohttp

from . import keep_warm, kv_tiers
from .flows import flows
from .model_shapes import make_model
from .observability import watching
from .peers import peers
from .pools import pools
from .results_file import Notes
from .server_info import Server, ServerGone, gpu
from .shared_results import shared_results, shared_results_more
from .vllm_process import ServerFailed, end_of, say, serve, serve_all
from .workers import workers
from .workloads import Scale, Stage, inflight, layout, prefix, resident

_KV_BLOCKS = ("--num-gpu-blocks-override", "16384")
_OFFLOAD = ("--kv-offloading-size", "64", "--kv-offloading-backend", "native")
_STARTS_WITHIN = 240.0
_WORTH_STARTING = 90.0
_GRACE = 15.0
_RESTARTS = 2
_START_SECONDS = 80.0
_PART_SECONDS = 100.0
"""Expected of a start, and of a part that is not known better."""
_EXPECTED_SECONDS = {**kv_tiers.ROUND_SECONDS, "kv_keep_warm": keep_warm.ROUND_SECONDS}

PARTS: Mapping[str, Callable[[Stage], Awaitable[None]]] = {
    "resident": resident,
    "prefix": prefix,
    "offload": lambda stage: resident(stage, "offload"),
    "inflight": inflight,
    "layout": layout,
    "flows": flows,
    "pools": pools,
    "watching": watching,
    "workers": workers,
    "shared_results": shared_results,
    "shared_results_roomy": lambda stage: shared_results(stage, "shared_results_roomy"),
    "shared_results_more": shared_results_more,
    "peers": peers,
    **{name: partial(kv_tiers.tier, part=name) for name in kv_tiers.TIERS},
    "kv_workers": kv_tiers.several_workers,
    "kv_keep_warm": keep_warm.keep_warm,
}


@dataclass(frozen=True, slots=True)
class Setup:
    """A server and the parts that are measured on it."""

    shape: str
    arguments: tuple[str, ...]
    parts: tuple[str, ...]


_BESIDE = {"kv_none": ("kv_keep_warm", "kv_workers")}
"""Parts on the server of another."""
SETUPS = (
    Setup("7b", _KV_BLOCKS, ("resident", "prefix", "layout", "flows", "pools", "watching", "workers", "peers")),
    Setup("7b", _KV_BLOCKS, ("shared_results", "shared_results_more")),
    Setup("7b", (), ("shared_results_roomy",)),
    Setup("7b", _KV_BLOCKS + _OFFLOAD, ("offload",)),
    Setup("32b", (), ("inflight",)),
    *(Setup("7b", tier.arguments, (name, *_BESIDE.get(name, ()))) for name, tier in kv_tiers.TIERS.items()),
)


@dataclass(frozen=True, slots=True)
class Job:
    """Parts that are wanted of a setup. `attempt`: how often its server has failed."""

    setup: Setup
    parts: tuple[str, ...]
    attempt: int = 0

    @property
    def name(self) -> str:
        return "-".join(self.parts)


def expected_seconds(parts: Sequence[str]) -> float:
    """On an H200, for one round."""
    return sum(_EXPECTED_SECONDS.get(part, _PART_SECONDS) for part in parts)


def jobs(only: Sequence[str]) -> list[Job]:
    """In the order in which `only` names their parts first."""
    found = [Job(setup, tuple(part for part in only if part in setup.parts)) for setup in SETUPS]
    return sorted((job for job in found if job.parts), key=lambda job: only.index(job.parts[0]))


def grouped(wanted: Sequence[Job], together: Sequence[str]) -> list[list[Job]]:
    """`together`: lists of parts whose servers start at the same time. The others start alone."""
    groups: dict[str, list[Job]] = {}
    for job in wanted:
        shared = (parts for parts in together if set(parts.split(",")) & set(job.parts))
        groups.setdefault(next(shared, job.name), []).append(job)
    return list(groups.values())


async def serve_and_run(options: argparse.Namespace, notes: Notes) -> None:
    """A server that fails to start beside others, or ends while it is measured, is started again after its group, on
    its own."""
    ends_at = time.monotonic() + options.budget
    groups = grouped(jobs(options.only), options.together)
    while groups:
        group = groups.pop(0)
        left = ends_at - time.monotonic()
        if left < _WORTH_STARTING:
            for job in group:
                notes.put(f"not started: {left:.0f} s were left", job.name, "error")
            continue
        failed = await _run_group(group, groups, options, notes, ends_at)
        groups[:0] = [[replace(job, attempt=job.attempt + 1)] for job in failed if job.attempt < _RESTARTS]


async def _run_group(
    group: list[Job], later: list[list[Job]], options: argparse.Namespace, notes: Notes, ends_at: float
) -> list[Job]:
    """The jobs whose servers failed and are worth another start."""
    failed: list[Job] = []
    logs = [options.model_root / f"vllm-{job.name}-{job.attempt}.log" for job in group]
    servers = [_server(job, log, options, ends_at) for job, log in zip(group, logs, strict=True)]
    async with serve_all(servers) as started:
        for at, (job, url, log) in enumerate(zip(group, started, logs, strict=True)):
            if isinstance(url, ServerFailed):
                failed += [job] if len(group) > 1 else []  # alone it would fail again
                notes.put(str(url), job.name, "errors", f"start_{job.attempt}")
                continue
            after = [part for each in [*group[at + 1 :], *chain(*later)] for part in each.parts]
            reserved = options.agents_scale * expected_seconds(after) + _START_SECONDS * len(later)
            try:
                await run_parts(url, list(job.parts), options, notes, ends_at, reserved, _arguments(job, options))
            except (ServerGone, aiohttp.ClientError, OSError, TimeoutError) as error:
                failed.append(job)
                notes.put(f"{error}\n{end_of(log, 60)}", job.name, "errors", f"died_{job.attempt}")
    return failed


def _server(job: Job, log: Path, options: argparse.Namespace, ends_at: float) -> AbstractAsyncContextManager[str]:
    model = make_model(job.setup.shape, options.model_root, options.tokenizer)
    limit = min(_STARTS_WITHIN, ends_at - time.monotonic())
    return serve(options.python, model, _arguments(job, options), log=log, limit=limit, vllm_path=options.vllm_path)


def _arguments(job: Job, options: argparse.Namespace) -> tuple[str, ...]:
    return *job.setup.arguments, *options.vllm_arguments.split()


async def run_parts(
    url: str,
    parts: list[str],
    options: argparse.Namespace,
    notes: Notes,
    ends_at: float,
    reserved: float = 0.0,
    arguments: tuple[str, ...] = (),
) -> None:
    """One after the other. A part that fails is noted, and the next one is run. `reserved`: seconds for the parts of
    later servers. Raises ServerGone."""
    async with Server(url) as server:
        scale = Scale(options.agents_scale, options.tokens_scale, options.seconds_scale)
        waiting = scale.agents * expected_seconds(parts)
        words = await server.words()
        say(f"{words.tokens_per_word:.3f} tokens per word")
        await Stage(server, words, notes, scale, ends_at).warm_up()
        for part in parts:
            started = time.monotonic()
            waiting -= scale.agents * expected_seconds([part])
            spare_until = ends_at - reserved - waiting
            stage = Stage(server, words, notes, scale, ends_at, options.rounds, spare_until, arguments)
            try:
                async with asyncio.timeout(ends_at - started + _GRACE):
                    await PARTS[part](stage)
            except ServerGone:
                raise
            except Exception as error:
                notes.put(f"{type(error).__name__}: {error}", part, "error")
                if await server.is_gone():
                    raise ServerGone(f"the server ended during {part}") from error
            notes.put(round(time.monotonic() - started, 1), part, "took_s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="GPU measurements")
    commands = parser.add_subparsers(dest="command", required=True)
    serving = commands.add_parser("serve-and-run", help="start vLLM for each part")
    serving.add_argument("--python", required=True, help="an interpreter that has vLLM")
    serving.add_argument("--vllm-path", help="PYTHONPATH of the server alone")
    serving.add_argument("--vllm-arguments", default="", help="more of them, in one word")
    serving.add_argument("--model-root", type=Path, required=True, help="where models and logs go")
    serving.add_argument("--tokenizer", type=Path, required=True, help="a folder with a tokenizer.json")
    serving.add_argument(
        "--together", action="append", default=[], help="parts whose servers start at the same time; may be repeated"
    )
    running = commands.add_parser("run", help="use a server that is there")
    running.add_argument("--url", required=True)
    for each in (serving, running):
        each.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
        each.add_argument("--out", type=Path, help="default: benchmarks/results/gpu.json")
        each.add_argument("--commit", help="where there is no git to ask")
        each.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
        each.add_argument("--rounds", type=int, default=1, help="of the kv_ parts, as far as the budget goes")
        each.add_argument("--agents-scale", type=float, default=1.0)
        each.add_argument("--tokens-scale", type=float, default=1.0)
        each.add_argument("--seconds-scale", type=float, default=1.0, help="of tools")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := sorted(set(options.only) - set(PARTS)):
        parser.error(f"--only {unknown[0]}: there are {', '.join(PARTS)}")
    return options


def main() -> None:
    options = _options()
    scales = {"agents": options.agents_scale, "tokens": options.tokens_scale, "seconds": options.seconds_scale}
    notes = Notes(options.out, options.commit, gpu=gpu(), scale=scales)
    started = time.monotonic()
    if options.command == "run":
        asyncio.run(run_parts(options.url, options.only, options, notes, started + options.budget))
    else:
        asyncio.run(serve_and_run(options, notes))
    say(f"all of it took {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
