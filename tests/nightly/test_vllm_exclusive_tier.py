"""A real vLLM with the exclusive host tier of batch-agent-vllm: device and host together keep more contexts than the
larger of both, and answers stay the same. The copies are those of a test, because vLLM's own need a GPU."""

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from scripts.engines.layout import MODEL, VLLM
from tests.live.conftest import BLOCK, PINS, PLUGIN
from tests.live.engines import vllm_server
from tests.live.test_vllm_plugin import pinned_share

from batch_agent.backends.connect import connect
from batch_agent.backends.diagnostics import diagnose

BLOCK_BYTES = 30 * 2 * 3 * 64 * 4 * BLOCK
"""Of SmolLM2-135M: layers, keys and values, heads, size of a head, bytes of a number (float32 on a CPU)."""
DEVICE_BLOCKS, HOST_BLOCKS = 40, 32
TIER = {
    "kv_connector": "ExclusiveOffloadingConnector",
    "kv_connector_module_path": "batch_agent_vllm.exclusive_offloading",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "ExclusiveTierOnCpu",
        "spec_module_path": "tier_on_cpu",
        "cpu_bytes_to_use": HOST_BLOCKS * BLOCK_BYTES,
    },
}
MANY_PINS = {**PINS, "kv_connector_extra_config": {"max_wait_s": 600, "max_pinned_fraction": 0.9}}


def test_the_tier_obeys_the_scheduler_of_vllm() -> None:
    done = subprocess.run(
        [str(VLLM.python), str(PLUGIN.parent / "tests" / "check_exclusive_in_vllm.py"), str(MODEL.folder)],
        env=os.environ | {"PYTHONPATH": str(PLUGIN)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert done.stdout.splitlines()[-1].startswith("ok ")


@pytest.fixture(scope="module")
def exclusive_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    connector = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [MANY_PINS, TIER]},
    }
    arguments = ("--num-gpu-blocks-override", str(DEVICE_BLOCKS), "--max-model-len", "1024")
    transfer = ("--kv-transfer-config", json.dumps(connector))
    path = f"{PLUGIN}:{PLUGIN.parent / 'tests'}"
    scratch = tmp_path_factory.mktemp("exclusive-vllm")
    with vllm_server(scratch, *arguments, *transfer, environment={"PYTHONPATH": path}) as url:
        yield url


def context(agent: int) -> str:
    return " ".join(f"ship {agent} crate {number}." for number in range(22))


async def test_device_and_host_together_keep_more_than_the_larger_of_both(exclusive_vllm: str) -> None:
    async with aiohttp.ClientSession() as http:
        first = [await ask(http, exclusive_vllm, agent, {"next_use_s": 60.0 + agent}) for agent in range(9)]
        blocks = [prompt // BLOCK for prompt, _, _ in first]
        assert sum(blocks) > 1.1 * DEVICE_BLOCKS > 1.1 * HOST_BLOCKS
        again = [await ask(http, exclusive_vllm, agent, {"drop": True}) for agent in range(9)]
    assert [text for _, _, text in again] == [text for _, _, text in first]
    assert sum(cached for _, cached, _ in again) > 0.9 * BLOCK * sum(blocks)
    assert await pinned_share(exclusive_vllm) == 0.0


async def test_the_capacity_is_the_sum_and_the_doctor_says_so(exclusive_vllm: str) -> None:
    backend = await connect(exclusive_vllm, None, uses_tools=False, notify=lambda text: None)
    traits = backend.traits
    await backend.aclose()
    assert traits.kv_running_tokens is not None
    assert traits.kv_tokens is not None
    assert traits.kv_tokens > 1.5 * traits.kv_running_tokens
    found = {check.name: check async for check in diagnose(exclusive_vllm, None, lambda text: None)}
    assert "beside the device" in found["KV plugin"].found


async def ask(http: aiohttp.ClientSession, url: str, agent: int, hint: dict[str, Any]) -> tuple[int, int, str]:
    """Tokens of the prompt, those found in a cache, and the answer."""
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": context(agent)}],
        "max_tokens": 8,
        "temperature": 0,
        "kv_transfer_params": {"batch_agent": {"session": f"agent-{agent}", **hint}},
    }
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        found = await response.json()
    usage = found["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return usage["prompt_tokens"], details.get("cached_tokens") or 0, found["choices"][0]["message"]["content"]
