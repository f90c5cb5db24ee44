"""Keep-warm on a real vLLM with a small KV cache, while another client asks one thing after the other.

    vllm serve MODEL --num-gpu-blocks-override 220 --block-size 32 --enable-prompt-tokens-details ...
    python -m benchmarks.keep_warm_vllm http://127.0.0.1:8000

Five agents with prompts of 1,000 tokens wait 75 s for a tool; meanwhile as much is computed as the cache holds. Made
for vLLM on a CPU, where a token of a prompt takes milliseconds. What the model says is replaced, as in benchmarks/gpu.
"""

import asyncio
import sys
import time
from typing import Any

import aiohttp

from batch_agent import BatchAgent
from batch_agent.backends.connect import connect
from benchmarks import report
from benchmarks.gpu.played import Played
from benchmarks.gpu.scene import Scene
from benchmarks.gpu.watch import Watch
from benchmarks.gpu.words import Words, nonce

AGENTS = 5
TOOL_S = 75.0
OTHERS_EVERY_S = 3.0
OTHERS_TOKENS = 300
WORDS = Words()


async def others(url: str, model: str, waits: list[float]) -> None:
    """One request at a time, each with a prompt that nobody has seen."""
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        for number in range(10_000):
            started = time.perf_counter()
            said = WORDS.own(number, nonce(), f"others {number}", OTHERS_TOKENS)
            body = {"model": model, "messages": [{"role": "user", "content": said}], "max_tokens": 1}
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                await response.read()
            waits.append(time.perf_counter() - started)
            await asyncio.sleep(max(0.0, OTHERS_EVERY_S - waits[-1]))


async def run(url: str, *, kvflow: bool) -> dict[str, Any]:
    backend = await connect(url, None, uses_tools=False, notify=print)
    start, waits, watch = nonce(), list[float](), Watch()
    scene = Scene(
        tasks=tuple(WORDS.own(number, start, "warm", 900) for number in range(AGENTS)),
        turns=2,
        output=8,
        system=f"{start} {WORDS.text('warm', 100)}",
        said="Let me look.",
        result=WORDS.text("warm result", 30),
        seconds=lambda key: TOOL_S,
    )
    busy = asyncio.create_task(others(url, backend.traits.model, waits))
    started = time.perf_counter()
    try:
        results = await BatchAgent.run(
            task="{it}",
            inputs=list(scene.tasks),
            system_prompt=scene.system,
            tools=[scene.tool(watch)],
            backend=Played(backend, scene, watch),
            streaming=True,
            kvflow=kvflow,
            timeout_per_tool=None,
        )
    finally:
        busy.cancel()
        await asyncio.wait([busy])
        await backend.aclose()
    how = results.scheduling
    return {
        "wall_s": round(time.perf_counter() - started, 1),
        "resumed_ttft_s": sorted(round(result.timing.ttft[1] or 0.0, 2) for result in results),
        "cached_tokens": [result.usage.cached for result in results],
        "prompt_tokens": [result.usage.input for result in results],
        "contexts_lost": how.cache_misses,
        "touches": how.keep_warm.requests if how.keep_warm else 0,
        "touch_tokens": how.keep_warm.tokens if how.keep_warm else 0,
        "others_asked": len(waits),
        "others_mean_s": round(sum(waits) / max(1, len(waits)), 2),
    }


def main(url: str) -> None:
    numbers = {}
    for name, kvflow in (("off", False), ("on", True)):
        numbers[name] = asyncio.run(run(url, kvflow=kvflow))
        print(name, numbers[name], flush=True)
    print(report.write("keep_warm_vllm", numbers))


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))
