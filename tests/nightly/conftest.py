"""Fixtures with the address of a real engine. They fail, and never skip, when it is not installed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.conftest import small_vllm, vllm_with_pins  # noqa: F401 - fixtures
from tests.live.engines import sglang_server

HERE = Path(__file__).parent
# The first test that asks for the engine waits for its start, so the limit of an ordinary test does not fit.
TEST_LIMIT = 420


@pytest.fixture(scope="session")
def sglang_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Root address of an SGLang that serves the model `smollm2`; BATCH_AGENT_SGLANG_URL names one that already runs."""
    if running := os.environ.get("BATCH_AGENT_SGLANG_URL"):
        yield running.rstrip("/")
        return
    with sglang_server(tmp_path_factory.mktemp("sglang")) as url:
        yield url


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.engines)
            item.add_marker(pytest.mark.nightly)
            item.add_marker(pytest.mark.timeout(TEST_LIMIT))
