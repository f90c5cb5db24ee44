"""Fixtures that hand out the address of a real engine. They fail, and never skip, when the engine is not installed."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.live.engines import dynamo_server, vision_server, vllm_server
from xdist.scheduler import LoadScopeScheduling

HERE = Path(__file__).parent
PLUGIN = HERE.parents[1] / "packages" / "batch-agent-vllm" / "src"
# The first test that asks for an engine waits for its start, so the limit of an ordinary test does not fit.
TEST_LIMIT = 420
PINS = {
    "kv_connector": "BatchAgentPins",
    "kv_connector_module_path": "batch_agent_vllm.pins_connector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"max_wait_s": 600, "unknown_wait_s": 600},
}
SHARED_ENGINES = ("vllm_url", "small_vllm", "vision_url", "vllm_with_pins", "dynamo_url")
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
def vision_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Root address of a vLLM that serves the model `tiny-llava`; BATCH_AGENT_VISION_URL names one that already runs."""
    if running := os.environ.get("BATCH_AGENT_VISION_URL"):
        yield running.rstrip("/")
        return
    with vision_server(tmp_path_factory.mktemp("vision")) as url:
        yield url


@pytest.fixture(scope="session")
def vllm_with_pins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Like `small_vllm`, with the plugin batch-agent-vllm. Its pins last, since nobody knows how fast the CPU is."""
    with server_with_connector(tmp_path_factory.mktemp("vllm-with-pins"), PINS) as url:
        yield url


def server_with_connector(scratch: Path, connector: Mapping[str, Any]) -> AbstractContextManager[str]:
    """A small vLLM with a KV connector of the plugin."""
    arguments = ("--num-gpu-blocks-override", str(SMALL_BLOCKS), "--max-model-len", str(SMALL_WINDOW))
    transfer = ("--kv-transfer-config", json.dumps(connector))
    return vllm_server(scratch, *arguments, *transfer, environment={"PYTHONPATH": str(PLUGIN)})


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


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that share engines run in one worker, so that each engine is started once, and so do those with a Ray
    cluster. Other files start what they need for themselves. (Groups of pytest-xdist 3.8 have no effect in pytest 9.2.)
    """
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _group
    return scheduler


def _group(test: str) -> str:
    file = test.partition("::")[0]
    source = (HERE.parents[1] / file).read_text()
    if any(engine in source for engine in SHARED_ENGINES):
        return "engines"
    return "ray" if "ray_cluster" in source else file
