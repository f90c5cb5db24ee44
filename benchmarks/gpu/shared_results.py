"""Documents that many agents read: behind the calls that read them, and before the agents' own text.

The work is that of benchmarks/shared_results.py. Every way fetches a document once; what takes longest is last, and a
run for which too little time is left is not begun.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import cache
from typing import Any

from ..shared_results import DOCUMENTS, READS, call_order, topics, zipf
from .runs import run_ours, run_plain
from .scenario import Scene, between
from .workloads import Sizes, Stage, scene_of

SIZES = Sizes(agents=128, turns=READS + 1, shared=2_000, own=400, output=64, result=2_000)
READERS = {"topics": topics, "zipf": zipf}
_MIN_SECONDS = 12.0
Way = Callable[[Stage, Scene], Awaitable[dict[str, Any]]]


async def _gather_inline(stage: Stage, scene: Scene) -> dict[str, Any]:
    return await run_plain(stage.server, scene, stage.limit)


async def _gather_first(stage: Stage, scene: Scene) -> dict[str, Any]:
    return await run_plain(stage.server, scene, stage.limit, placement="first")


async def _call_order(stage: Stage, scene: Scene) -> dict[str, Any]:
    with call_order():
        return await run_ours(stage.server, scene, stage.limit, shared_results="first")


def _ours(placement: str) -> Way:
    async def run(stage: Stage, scene: Scene) -> dict[str, Any]:
        return await run_ours(stage.server, scene, stage.limit, shared_results=placement)

    return run


WAYS: dict[str, Way] = {
    "gather_inline": _gather_inline,
    "gather_first": _gather_first,
    "inline": _ours("inline"),
    "first": _ours("first"),
    "auto": _ours("auto"),
    "first_in_call_order": _call_order,
}


async def shared_results(stage: Stage, part: str = "shared_results") -> None:
    """The KV cache holds a quarter of the agents' contexts if each has its documents for itself."""
    await _run(stage, part, [(who, way) for who in READERS for way in ("first", "gather_first", "auto")])
    await _run(stage, part, [(who, "gather_inline") for who in READERS])


async def shared_results_more(stage: Stage) -> None:
    """The same, for ways that are not in the first comparison."""
    ways = ("first_in_call_order", "inline")
    await _run(stage, "shared_results_more", [(who, way) for way in ways for who in READERS])


async def _run(stage: Stage, part: str, runs: list[tuple[str, str]]) -> None:
    scale = stage.scale
    tokens = (scale.of_tokens(each) for each in (SIZES.shared, SIZES.own, SIZES.output, SIZES.result))
    sizes = Sizes(scale.of_agents(SIZES.agents), SIZES.turns, *tokens)
    stage.notes.put({**await stage.server.about(), "sizes": asdict(sizes), "documents": DOCUMENTS}, part, "setup")
    for who, way in runs:
        if stage.limit < _MIN_SECONDS:
            stage.notes.put(f"not begun: {stage.limit:.0f} s were left", part, who, way)
            continue
        numbers = await WAYS[way](stage, _scene(stage, sizes, part, who))
        counted = numbers["server_counted"]
        computed = counted["prefix_cache_queries"] - counted["prefix_cache_hits"]
        stage.notes.put({"computed_tokens": computed, **numbers}, part, who, way)


def _scene(stage: Stage, sizes: Sizes, part: str, who: str) -> Scene:
    @cache
    def text(key: str) -> str:
        return stage.words.text(key, sizes.result)

    return scene_of(
        stage.words,
        sizes,
        part,
        key=lambda agent, turn: f"document {READERS[who](agent, max(turn, 0)):02}",
        seconds=between(1.0 * stage.scale.seconds, 3.0 * stage.scale.seconds),
        shares_tools=True,
        text=text,
    )
