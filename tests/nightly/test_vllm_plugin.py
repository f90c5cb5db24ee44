"""The plugin batch-agent-vllm under pressure. Pins last for a time: on a machine that does much else, these tests
fail."""

import asyncio

from benchmarks.kv_hints_vllm import run
from tests.live.conftest import BLOCK, SMALL_BLOCKS
from tests.live.test_vllm_plugin import chat, pinned_share


async def test_pins_are_given_up_for_requests_that_need_the_memory(vllm_with_pins: str) -> None:
    contexts = [" ".join(f"ship {agent} crate {number}." for number in range(50)) for agent in range(3)]
    for agent, text in enumerate(contexts):
        await chat(vllm_with_pins, text, {"session": f"waiting-{agent}", "next_use_s": 100.0 + agent})
    assert 0.2 < await pinned_share(vllm_with_pins) <= 0.5
    large = [" ".join(f"{word} {number}." for number in range(225)) for word in ("barrel", "bucket")]
    (first, _), (second, _) = await asyncio.gather(  # of some tokens, so that they run at once on a fast machine too
        *(chat(vllm_with_pins, text, None, max_tokens=40) for text in large)
    )
    assert first + second > 0.7 * SMALL_BLOCKS * BLOCK
    assert 0.0 < await pinned_share(vllm_with_pins) < 0.2
    cached = [
        (await chat(vllm_with_pins, text, {"session": f"waiting-{agent}", "drop": True}))[1]
        for agent, text in enumerate(contexts)
    ]
    assert cached[0] > 300  # the one that was needed first
    assert await pinned_share(vllm_with_pins) == 0.0


async def test_agents_that_return_from_a_tool_find_their_contexts_only_with_the_plugin(
    small_vllm: str, vllm_with_pins: str
) -> None:
    plain, pinned = await run(small_vllm), await run(vllm_with_pins)
    assert pinned.outputs == plain.outputs
    assert pinned.returned_prompt_tokens == plain.returned_prompt_tokens
    assert plain.returned_cached_tokens < 0.3 * plain.returned_prompt_tokens  # the head of the prompt, after the first
    assert pinned.returned_cached_tokens > 0.7 * pinned.returned_prompt_tokens
    assert await pinned_share(vllm_with_pins) == 0.0
