"""A real vLLM with the plugin batch-agent-vllm: contexts of waiting agents survive traffic that evicts them without
it, and answers stay the same."""

import os
import subprocess
from pathlib import Path

import aiohttp
import pytest
from scripts.engines.layout import VLLM
from tests.live.conftest import BLOCK, PINS, PLUGIN, SMALL_BLOCKS, server_with_connector

from batch_agent.backends.connect import connect
from batch_agent.backends.diagnostics import diagnose
from batch_agent.core.requests import ContextHint


def test_the_pins_obey_the_classes_of_vllm() -> None:
    done = subprocess.run(
        [str(VLLM.python), str(PLUGIN.parent / "tests" / "check_pins_in_vllm.py")],
        env=os.environ | {"PYTHONPATH": str(PLUGIN)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert done.stdout.splitlines()[-1].startswith("ok ")


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


async def test_malformed_hints_are_ignored(vllm_with_pins: str) -> None:
    for hint in ("text", ["list"], {"session": 3, "next_use_s": "soon", "shared_tokens": -1}):
        tokens, _ = await chat(vllm_with_pins, "Hello", hint)
        assert tokens > 0


@pytest.mark.nightly
async def test_the_pins_work_beside_others_in_a_multi_connector(tmp_path: Path) -> None:
    connectors = {"kv_connector_extra_config": {"connectors": [PINS]}}
    with server_with_connector(tmp_path, {"kv_connector": "MultiConnector", "kv_role": "kv_both", **connectors}) as url:
        backend = await connect(url, None, uses_tools=False, notify=lambda text: None)
        await backend.aclose()
        assert backend.traits.takes_hints
        text = " ".join(f"crate {number}." for number in range(80))
        tokens, _ = await chat(url, text, {"session": "a", "next_use_s": 5.0})
        assert await pinned_share(url) * SMALL_BLOCKS == tokens // BLOCK
        _, cached = await chat(url, text, {"session": "a", "drop": True})
        assert cached == tokens // BLOCK * BLOCK
        assert await pinned_share(url) == 0.0


async def test_the_doctor_says_how_to_get_the_plugin(small_vllm: str) -> None:
    found = {check.name: check async for check in diagnose(small_vllm, None, lambda text: None)}
    assert found["KV plugin"].state == "off"
    assert "batch-agent-vllm" in found["KV plugin"].advice


async def chat(url: str, text: str, hint: object, *, max_tokens: int = 1) -> tuple[int, int]:
    """Prompt tokens, and those of them that were cached."""
    body = {"model": "smollm2", "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}
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
