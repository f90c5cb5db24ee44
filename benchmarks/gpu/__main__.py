"""Runs the GPU measurements.

    python -m benchmarks.gpu serve-and-run --python PYTHON --model-root DIR --tokenizer DIR [--only resident,prefix]
    python -m benchmarks.gpu run --url http://127.0.0.1:8000 --only resident

`serve-and-run` makes the models (a shape, no weights), and starts vLLM for each part in turn. PYTHON has vLLM, found in
--vllm-path if that is given. All parts but `peers` and those of shared results take about eight minutes on an H200, and
each of these as long again; --budget ends them earlier.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .flows import flows
from .model_shapes import make_model
from .observability import watching
from .peers import peers
from .pools import pools
from .results_file import Notes
from .server_info import Server, gpu
from .shared_results import shared_results, shared_results_more
from .vllm_process import ServerFailed, say, serve
from .workers import workers
from .workloads import Scale, Stage, inflight, layout, prefix, resident

_KV_BLOCKS = ("--num-gpu-blocks-override", "16384")
_OFFLOAD = ("--kv-offloading-size", "64", "--kv-offloading-backend", "native")
_STARTS_WITHIN = 240.0
_WORTH_STARTING = 90.0
_GRACE = 15.0

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
}


@dataclass(frozen=True, slots=True)
class Setup:
    """A server and the parts that are measured on it."""

    shape: str
    arguments: tuple[str, ...]
    parts: tuple[str, ...]


SETUPS = (
    Setup("7b", _KV_BLOCKS, ("resident", "prefix", "layout", "flows", "pools", "watching", "workers", "peers")),
    Setup("7b", _KV_BLOCKS, ("shared_results", "shared_results_more")),
    Setup("7b", (), ("shared_results_roomy",)),
    Setup("7b", _KV_BLOCKS + _OFFLOAD, ("offload",)),
    Setup("32b", (), ("inflight",)),
)


async def serve_and_run(options: argparse.Namespace, notes: Notes) -> None:
    ends_at = time.monotonic() + options.budget
    for setup in SETUPS:
        wanted = [part for part in setup.parts if part in options.only]
        left = ends_at - time.monotonic()
        if not wanted:
            continue
        if left < _WORTH_STARTING:
            notes.put(f"not started: {left:.0f} s were left", "-".join(wanted), "error")
            continue
        model = make_model(setup.shape, options.model_root, options.tokenizer)
        log = options.model_root / f"vllm-{'-'.join(wanted)}.log"
        limit = min(_STARTS_WITHIN, left)
        arguments = (*setup.arguments, *options.vllm_arguments.split())
        try:
            started = serve(options.python, model, arguments, log=log, limit=limit, vllm_path=options.vllm_path)
            async with started as url:
                await run_parts(url, wanted, options, notes, ends_at)
        except ServerFailed as error:
            notes.put(str(error), "-".join(wanted), "error")


async def run_parts(url: str, parts: list[str], options: argparse.Namespace, notes: Notes, ends_at: float) -> None:
    """One after the other. A part that fails is noted, and the next one is run."""
    async with Server(url) as server:
        scale = Scale(options.agents_scale, options.tokens_scale, options.seconds_scale)
        stage = Stage(server, await server.words(), notes, scale, ends_at)
        say(f"{stage.words.tokens_per_word:.3f} tokens per word")
        await stage.warm_up()
        for part in parts:
            started = time.monotonic()
            try:
                async with asyncio.timeout(ends_at - started + _GRACE):
                    await PARTS[part](stage)
            except Exception as error:  # noqa: BLE001 - what fails in one part must not cost the others
                notes.put(f"{type(error).__name__}: {error}", part, "error")
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
    running = commands.add_parser("run", help="use a server that is there")
    running.add_argument("--url", required=True)
    for each in (serving, running):
        each.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
        each.add_argument("--out", type=Path, help="default: benchmarks/results/gpu.json")
        each.add_argument("--commit", help="where there is no git to ask")
        each.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
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
