"""A real vLLM with the plugin batch-agent-vllm: contexts of waiting agents survive traffic that evicts them without
it, and answers stay the same."""

import asyncio

import aiohttp
from benchmarks.kv_hints_vllm import run
from tests.live.conftest import BLOCK, SMALL_BLOCKS

from batch_agent.backends.connect import connect
from batch_agent.backends.diagnostics import diagnose
from batch_agent.core.requests import ContextHint


async def test_the_probe_finds_the_plugin_and_the_doctor_names_it(vllm_with_pins: str) -> None:
    backend = await connect(vllm_with_pins, None, uses_tools=False, notify=lambda text: None)
    traits = backend.traits
    await backend.aclose()
    assert traits.takes_hints
    assert traits.has_agent_sessions
    found = {check.name: check async for check in diagnose(vllm_with_pins, None, lambda text: None)}
    assert found["KV plugin"].state == "ok"
    assert "pins" in found["KV plugin"].found


async def test_a_hint_without_a_request_pins_and_ends_a_context(vllm_with_pins: str) -> None:
    text = " ".join(f"crate {number}." for number in range(80))
    await chat(vllm_with_pins, text, {"session": "late", "next_use_s": 900.0})
    assert await pinned_share(vllm_with_pins) == 0.0  # too long a wait for a pin
    backend = await connect(vllm_with_pins, None, uses_tools=False, notify=lambda text: None)
    await backend.hint(ContextHint("late", next_use=5.0))  # type: ignore[attr-defined]
    blocks = await pinned_share(vllm_with_pins) * SMALL_BLOCKS
    assert blocks * BLOCK > 300
    await backend.hint(ContextHint("late", is_last=True))  # type: ignore[attr-defined]
    await backend.aclose()
    assert await pinned_share(vllm_with_pins) == 0.0


async def test_pins_are_given_up_for_requests_that_need_the_memory(vllm_with_pins: str) -> None:
    contexts = [" ".join(f"ship {agent} crate {number}." for number in range(50)) for agent in range(3)]
    for agent, text in enumerate(contexts):
        await chat(vllm_with_pins, text, {"session": f"waiting-{agent}", "next_use_s": 100.0 + agent})
    assert 0.2 < await pinned_share(vllm_with_pins) <= 0.5
    large = [" ".join(f"{word} {number}." for number in range(200)) for word in ("barrel", "bucket")]
    (first, _), (second, _) = await asyncio.gather(*(chat(vllm_with_pins, text, None) for text in large))
    assert first + second > 0.7 * SMALL_BLOCKS * BLOCK
    assert 0.0 < await pinned_share(vllm_with_pins) < 0.2
    cached = [
        (await chat(vllm_with_pins, text, {"session": f"waiting-{agent}", "drop": True}))[1]
        for agent, text in enumerate(contexts)
    ]
    assert cached[0] > 300  # the one that was needed first
    assert await pinned_share(vllm_with_pins) == 0.0


async def test_malformed_hints_are_ignored(vllm_with_pins: str) -> None:
    for hint in ("text", ["list"], {"session": 3, "next_use_s": "soon", "shared_tokens": -1}):
        tokens, _ = await chat(vllm_with_pins, "Hello", hint)
        assert tokens > 0


async def test_the_doctor_says_how_to_get_the_plugin(small_vllm: str) -> None:
    found = {check.name: check async for check in diagnose(small_vllm, None, lambda text: None)}
    assert found["KV plugin"].state == "off"
    assert "batch-agent-vllm" in found["KV plugin"].advice


async def test_agents_that_return_from_a_tool_find_their_contexts_only_with_the_plugin(
    small_vllm: str, vllm_with_pins: str
) -> None:
    plain, pinned = await run(small_vllm), await run(vllm_with_pins)
    assert pinned.outputs == plain.outputs
    assert pinned.returned_prompt_tokens == plain.returned_prompt_tokens
    assert plain.returned_cached_tokens < 0.3 * plain.returned_prompt_tokens  # the head of the prompt, after the first
    assert pinned.returned_cached_tokens > 0.7 * pinned.returned_prompt_tokens
    assert await pinned_share(vllm_with_pins) == 0.0


async def chat(url: str, text: str, hint: object) -> tuple[int, int]:
    """Prompt tokens, and those of them that were cached."""
    body = {"model": "smollm2", "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
    if hint is not None:
        body["kv_transfer_params"] = {"batch_agent": hint}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{url}/v1/chat/completions", json=body) as response,
    ):
        usage = (await response.json())["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"] or 0


async def pinned_share(url: str) -> float:
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(f"{url}/metrics") as response:
        page = await response.text()
    return next(float(line.split()[-1]) for line in page.splitlines() if line.startswith("batch_agent:pinned_share{"))
