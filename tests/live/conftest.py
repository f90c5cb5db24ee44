"""Fixtures that hand out the address of a real engine. They fail, and never skip, when the engine is not installed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.engines import dynamo_server, vllm_server

HERE = Path(__file__).parent
PLUGIN = HERE.parents[1] / "packages" / "batch-agent-vllm" / "src"
# The first test that asks for an engine waits for its start, so the limit of an ordinary test does not fit.
TEST_LIMIT = 420
BLOCK = 32
SMALL_BLOCKS = 100
SMALL_WINDOW = 2048


@pytest.fixture(scope="session")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Root address of a vLLM that serves the model `smollm2`; BATCH_AGENT_VLLM_URL names one that already runs."""
    if running := os.environ.get("BATCH_AGENT_VLLM_URL"):
        yield running.rstrip("/")
        return
    with vllm_server(tmp_path_factory.mktemp("vllm"), "--scheduling-policy", "priority") as url:
        yield url


@pytest.fixture(scope="session")
def small_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Root address of a vLLM whose model has a window of 2,048 tokens, and a KV cache of 100 blocks."""
    arguments = ("--num-gpu-blocks-override", str(SMALL_BLOCKS), "--max-model-len", str(SMALL_WINDOW))
    with vllm_server(tmp_path_factory.mktemp("small-vllm"), *arguments) as url:
        yield url


@pytest.fixture(scope="session")
def vllm_with_pins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Like `small_vllm`, with the plugin batch-agent-vllm. Its pins last, since nobody knows how fast the CPU is."""
    options = {"max_wait_s": 600, "unknown_wait_s": 600}
    connector = {
        "kv_connector": "BatchAgentPins",
        "kv_connector_module_path": "batch_agent_vllm.pins_connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": options,
    }
    arguments = ("--num-gpu-blocks-override", str(SMALL_BLOCKS), "--max-model-len", str(SMALL_WINDOW))
    with vllm_server(
        tmp_path_factory.mktemp("vllm-with-pins"),
        *arguments,
        "--kv-transfer-config",
        json.dumps(connector),
        environment={"PYTHONPATH": str(PLUGIN)},
    ) as url:
        yield url


@pytest.fixture(scope="session")
def dynamo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Root address of a Dynamo that serves the model `smollm2`; BATCH_AGENT_DYNAMO_URL names one that already runs."""
    if running := os.environ.get("BATCH_AGENT_DYNAMO_URL"):
        yield running.rstrip("/")
        return
    with dynamo_server(tmp_path_factory.mktemp("dynamo")) as url:
        yield url


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.engines)
            item.add_marker(pytest.mark.timeout(TEST_LIMIT))
