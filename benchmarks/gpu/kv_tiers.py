"""The agents of `resident` on servers that keep contexts in different tiers: on the GPU alone, also in a host tier that
is too small for all of them or large enough, and on the GPU where all of them fit.

A part runs its ways in turns, `--rounds` times, and keeps one entry per round. A part that is called again goes on
where it stopped, so that a server that died costs one run and not its whole part.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from .runs import run_ours, run_plain
from .scenario import Scene, between
from .server_info import ServerGone
from .vllm_process import say
from .workers import WORKERS, run_shared
from .workloads import RESIDENT, Sizes, Stage, scene_of

Run = Callable[[Stage, Scene, float, bool], Awaitable[dict[str, Any]]]
"""Of a scene, within seconds, with a trace of its turns or without."""
_GIB = 1 << 30
_LIMIT_FACTOR = 1.6
_LIMIT_GRACE = 30.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the agents."""

    run: Run
    seconds: float
    """Expected on an H200."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Where a server keeps contexts."""

    arguments: tuple[str, ...]
    """Of vLLM."""
    ours_seconds: float
    """Expected on an H200, of BatchAgent."""
    loop_seconds: float | None
    """The same of the plain loop; None: it is not run."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `BatchAgent.run`."""


def gpu_memory(kv_gib: int) -> tuple[str, ...]:
    """vLLM takes this much for its KV cache, without a look at what is free: several servers can start at once."""
    return "--kv-cache-memory-bytes", str(kv_gib * _GIB), "--gpu-memory-utilization", "0.2"


def native(gib: int) -> tuple[str, ...]:
    """The host tier of vLLM."""
    return "--kv-offloading-size", str(gib), "--kv-offloading-backend", "native"


def plugin(gib: int) -> tuple[str, ...]:
    """The host tier of vLLM with the policy and the pins of `batch_agent_vllm`."""
    offloading = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": gib * _GIB,
            "spec_name": PLUGIN_SPEC,
            "spec_module_path": PLUGIN_SPEC_MODULE,
        },
    }
    return _with_pins(offloading)


def exclusive(gib: int) -> tuple[str, ...]:
    """The host tier of `batch_agent_vllm` that adds to the GPU, and its pins."""
    offloading = {
        "kv_connector": EXCLUSIVE,
        "kv_role": "kv_both",
        "kv_connector_module_path": EXCLUSIVE_MODULE,
        "kv_connector_extra_config": {"cpu_bytes_to_use": gib * _GIB},
    }
    return _with_pins(offloading, max_pinned_fraction=0.9)


def _with_pins(offloading: dict[str, Any], **options: float) -> tuple[str, ...]:
    pins = {
        "kv_connector": PINS,
        "kv_role": "kv_both",
        "kv_connector_module_path": PINS_MODULE,
        "kv_connector_extra_config": options,
    }
    several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [offloading, pins]},
    }
    return "--kv-transfer-config", json.dumps(several)


PLUGIN_SPEC, PLUGIN_SPEC_MODULE = "NextUseOffloadingSpec", "batch_agent_vllm.offloading"
EXCLUSIVE, EXCLUSIVE_MODULE = "ExclusiveOffloadingConnector", "batch_agent_vllm.exclusive_offloading"
PINS, PINS_MODULE = "BatchAgentPins", "batch_agent_vllm.pins_connector"
"""Connector that pins contexts on the GPU."""
SMALL_GPU = ("--num-gpu-blocks-override", "16384", *gpu_memory(15))
"""Blocks of 16 tokens, 56 KiB each: a quarter of the contexts."""
ALL_OF_IT = gpu_memory(70)
"""All contexts of `RESIDENT`, and what BatchAgent leaves free."""
TIERS: Mapping[str, Tier] = {
    "kv_none": Tier(SMALL_GPU, ours_seconds=64, loop_seconds=97),
    "kv_16": Tier(SMALL_GPU + native(16), ours_seconds=75, loop_seconds=104),
    "kv_plugin_16": Tier(SMALL_GPU + plugin(16), ours_seconds=65, loop_seconds=None),
    "kv_exclusive_16": Tier(SMALL_GPU + exclusive(16), ours_seconds=60, loop_seconds=None),
    "kv_64": Tier(SMALL_GPU + native(64), ours_seconds=52, loop_seconds=48),
    "kv_plugin_64": Tier(SMALL_GPU + plugin(64), ours_seconds=52, loop_seconds=None),
    "kv_all": Tier(ALL_OF_IT, ours_seconds=45, loop_seconds=45),
}
_FOUR_SECONDS = 82.0
ROUND_SECONDS: Mapping[str, float] = {
    **{name: tier.ours_seconds + (tier.loop_seconds or 0) for name, tier in TIERS.items()},
    "kv_workers": _FOUR_SECONDS,
}
"""Expected of the first round of a part, on an H200."""


async def tier(stage: Stage, part: str) -> None:
    """BatchAgent and the plain loop."""
    there = TIERS[part]
    ways = {"ours": Way(ours(**there.options), there.ours_seconds)}
    if there.loop_seconds is not None:
        ways["loop"] = Way(_loop, there.loop_seconds)
    await in_turns(stage, part, ways, partial(resident_scene, stage, part))


async def several_workers(stage: Stage) -> None:
    """Four workers that share the slots and the KV cache of one; `ours` of `kv_none` is that of one worker."""
    ways = {"four": Way(_four, _FOUR_SECONDS)}
    await in_turns(stage, "kv_workers", ways, partial(resident_scene, stage, "kv_workers"))


def ours(**options: Any) -> Run:
    async def run(stage: Stage, scene: Scene, limit: float, traced: bool) -> dict[str, Any]:
        return await run_ours(stage.server, scene, limit, traced=traced, **options)

    return run


async def _loop(stage: Stage, scene: Scene, limit: float, traced: bool) -> dict[str, Any]:
    return await run_plain(stage.server, scene, limit, traced=traced)


async def _four(stage: Stage, scene: Scene, limit: float, traced: bool) -> dict[str, Any]:
    return await run_shared(stage.server, scene, limit, WORKERS, traced=traced)


def resident_scene(stage: Stage, seed: str) -> Scene:
    return scene_of(
        stage.words,
        scaled(stage, RESIDENT),
        seed,
        seconds=between(1.0 * stage.scale.seconds, 3.0 * stage.scale.seconds),
    )


def scaled(stage: Stage, sizes: Sizes) -> Sizes:
    tokens = (stage.scale.of_tokens(each) for each in (sizes.shared, sizes.own, sizes.output, sizes.result))
    return Sizes(stage.scale.of_agents(sizes.agents), sizes.turns, *tokens)


async def in_turns(
    stage: Stage, part: str, ways: Mapping[str, Way], scene: Callable[[], Scene], sizes: Sizes = RESIDENT
) -> None:
    """Every way once per round, in the opposite order every other round. What is not begun for want of time is noted.

    Raises ServerGone once the run that it ended is noted."""
    about = {**await stage.server.about(), "sizes": asdict(scaled(stage, sizes)), "arguments": list(stage.arguments)}
    stage.notes.put(about, part, "setup")
    for round_ in range(stage.rounds):
        for name in _order(list(ways), round_):
            await _once(stage, part, name, ways[name], scene, round_)


def _order(names: Sequence[str], round_: int) -> Sequence[str]:
    return names if round_ % 2 == 0 else names[::-1]


async def _once(stage: Stage, part: str, name: str, way: Way, scene: Callable[[], Scene], round_: int) -> None:
    done: list[dict[str, Any]] = stage.notes.get(part, name) or []
    if len(done) > round_:
        return
    needed, left = way.seconds * stage.scale.agents, stage.left(is_extra=round_ > 0)
    if needed > left:
        say(f"{part} {name}: round {round_} is not begun, {left:.0f} s are left")
        stage.notes.put(f"needs {needed:.0f} s, {left:.0f} s were left", part, "not_begun", f"{name}_{round_}")
        return
    began = time.time()
    numbers = await way.run(stage, scene(), min(stage.limit, _LIMIT_FACTOR * way.seconds + _LIMIT_GRACE), round_ == 0)
    is_gone = await stage.server.is_gone()
    computed = numbers["prompt_tokens"] - numbers["cached_tokens"]
    noted = {"round": round_, "began": round(began, 1), "server_died": is_gone, "computed_tokens": computed, **numbers}
    stage.notes.put([*done, noted], part, name)
    if is_gone:
        raise ServerGone(f"the server ended during {part} {name}, round {round_}")
