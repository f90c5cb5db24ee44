"""The pins connector in the real classes of the vLLM that runs this script; needs neither a GPU nor a model.

Prints `ok` and the version, or fails with what went wrong. `test_vllm_plugin.py` runs it.
"""

from inspect import signature
from types import SimpleNamespace
from typing import Any

import vllm
from prometheus_client import Counter, Gauge, Histogram
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, supports_hma
from vllm.sampling_params import SamplingParams
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id
from vllm.v1.request import Request

BLOCKS, TOKENS = 20, 16
CONFIG = {
    "kv_connector": "BatchAgentPins",
    "kv_connector_module_path": "batch_agent_vllm.pins_connector",
    "kv_role": "kv_both",
}


class Engine:
    """Calls a connector as the scheduler does, for one request after the other."""

    def __init__(self) -> None:
        self.pool = BlockPool(BLOCKS + 1, True, TOKENS)  # with the null block
        kind = KVConnectorFactory.get_connector_class(KVTransferConfig(**CONFIG))
        assert supports_hma(kind)
        config = SimpleNamespace(
            kv_transfer_config=KVTransferConfig(**CONFIG),
            cache_config=SimpleNamespace(block_size=TOKENS),
            scheduler_config=SimpleNamespace(watermark=0.0),
        )
        self.connector: Any = kind(config, KVConnectorRole.SCHEDULER, SimpleNamespace())
        self.connector.bind_gpu_block_pool(self.pool)
        types = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
        self.metrics = kind.build_prom_metrics(config, types, ["engine"], {0: ["0"]})
        self.sent = 0

    def run(self, name: str, blocks: int, **hint: Any) -> tuple[int, Any]:
        """Hits of the request, and what its response has from the connector."""
        request = self._request(blocks, hint)
        self.connector.on_new_request(request)
        assert self.connector.get_num_new_matched_tokens(request, 0) == (0, False)
        used, hits = [], 0
        for index in range(blocks):
            content = BlockHash(f"{name}-{index}".encode().ljust(32))
            if cached := self.pool.get_cached_block(content, [0]):
                self.pool.touch(cached)
                hits += 1
            else:
                cached = self.pool.get_new_blocks(1)
                key = make_block_hash_with_group_id(content, 0)
                cached[0].set_block_hash(key, num_tokens=(index + 1) * TOKENS)
                self.pool.cached_block_hash_to_block.insert(key, cached[0])
            used += cached
        self.connector.update_state_after_alloc(request, None, 0)
        self._step({request.request_id: request.num_tokens})
        is_async, response = self.connector.request_finished_all_groups(request, ([each.block_id for each in used],))
        assert not is_async
        self.pool.free_blocks(reversed(used))
        self._step({})
        return hits, response

    def _step(self, scheduled: dict[str, int]) -> None:
        output = SimpleNamespace(num_scheduled_tokens=scheduled, total_num_scheduled_tokens=sum(scheduled.values()))
        self.connector.build_connector_meta(output)
        if (stats := self.connector.get_kv_connector_stats()) is not None:
            self.metrics.observe(self.connector.build_kv_connector_stats(stats.data).data, 0)

    def _request(self, blocks: int, hint: dict[str, Any]) -> Any:
        self.sent += 1
        sampling = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": {"batch_agent": hint}})
        options: dict[str, Any] = {"request_id": str(self.sent), "prompt_token_ids": list(range(blocks * TOKENS))}
        options |= {"sampling_params": sampling, "pooling_params": None}
        if "eos_token_id" in signature(Request.__init__).parameters:
            options["eos_token_id"] = None
        return Request(**options)


def a_waiting_session_stays_and_is_released() -> None:
    engine = Engine()
    engine.run("a", 5, session="a", next_use_s=5)
    for number in range(8):
        engine.run(f"other-{number}", 5)
    assert engine.pool.get_num_free_blocks() == BLOCKS - 5
    assert engine.run("a", 5, session="a", drop=True)[0] == 5
    assert engine.pool.get_num_free_blocks() == BLOCKS


def pins_are_given_up_for_a_large_request() -> None:
    engine = Engine()
    engine.run("soon", 4, session="soon", next_use_s=1)
    engine.run("late", 4, session="late", next_use_s=30)
    engine.run("large", 14)
    assert engine.run("soon", 4, session="soon", drop=True)[0] == 4
    assert engine.run("late", 4, session="late", drop=True)[0] == 2  # its tail went first
    assert engine.pool.get_num_free_blocks() == BLOCKS


def contexts_that_are_never_used_again_are_reused_first() -> None:
    engine = Engine()
    engine.run("a", 5, session="a", next_use_s=600)  # too long a wait for a pin
    for number in range(8):
        engine.run(f"once-{number}", 5, once=True)
    assert engine.run("a", 5, session="a", drop=True)[0] == 5


def an_update_pins_and_drops() -> None:
    engine = Engine()
    engine.run("a", 5, session="a", next_use_s=600)
    engine.run("update", 0, session="a", next_use_s=1, update=True)
    assert engine.pool.get_num_free_blocks() == BLOCKS - 5
    engine.run("update", 0, session="a", drop=True, update=True)
    assert engine.pool.get_num_free_blocks() == BLOCKS


def a_probe_returns_the_capabilities() -> None:
    _, response = Engine().run("a", 1, probe=True)
    assert response["batch_agent"]["pins"] is True
    assert response["batch_agent"]["device_tokens"] == (BLOCKS + 1) * TOKENS


if __name__ == "__main__":
    from prometheus_client import REGISTRY

    for check in (
        a_waiting_session_stays_and_is_released,
        pins_are_given_up_for_a_large_request,
        contexts_that_are_never_used_again_are_reused_first,
        an_update_pins_and_drops,
        a_probe_returns_the_capabilities,
    ):
        before = set(REGISTRY._collector_to_names)
        check()
        for collector in set(REGISTRY._collector_to_names) - before:
            REGISTRY.unregister(collector)
    print("ok", vllm.__version__)
