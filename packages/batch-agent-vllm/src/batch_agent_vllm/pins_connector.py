"""KV connector that pins the device blocks of waiting sessions. It copies nothing, and works alone or beside an
offloading connector in a MultiConnector.

    --kv-transfer-config '{"kv_connector": "BatchAgentPins", "kv_connector_module_path":
        "batch_agent_vllm.pins_connector", "kv_role": "kv_both"}'

Options in `kv_connector_extra_config`: `max_pinned_fraction`, `max_wait_s`, `unknown_wait_s` (see PinLimits).
"""

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from batch_agent_vllm import capabilities, device_tier
from batch_agent_vllm.device_pins import DevicePins, PinLimits
from batch_agent_vllm.hints import KEY, parse_hints
from batch_agent_vllm.pin_metrics import PinPromMetrics, PinStats

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


@dataclass
class NoMetadata(KVConnectorMetadata):
    """Empty, because the worker side has nothing to do."""


class BatchAgentPins(KVConnectorBase_V1, SupportsHMA):
    """Scheduler side of the pins. The worker side is empty."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        option = self._kv_transfer_config.get_from_extra_config
        defaults = PinLimits()
        self._limits = PinLimits(
            float(option("max_pinned_fraction", defaults.max_fraction)),
            float(option("max_wait_s", defaults.max_wait)),
            float(option("unknown_wait_s", defaults.unknown_wait)),
        )
        self._block_size = int(vllm_config.cache_config.block_size)
        self._watermark = float(getattr(vllm_config.scheduler_config, "watermark", 0.0))
        self._pins: DevicePins | None = None
        self._pool_blocks = 0
        self._reported: dict[str, Any] = {}
        self._prefills: dict[str, Request] = {}
        """Requests whose prompts are not known to be computed."""
        self._unallocated = 0
        """Blocks needed by the request that was asked about last in this step, while it has none."""

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        return True  # a MultiConnector uses the layout that is fast for the host tier only if all its connectors agree

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # nothing is handed to another engine

    def bind_gpu_block_pool(self, gpu_block_pool: "BlockPool") -> None:
        self._pool_blocks = gpu_block_pool.num_gpu_blocks
        self._pins = DevicePins(gpu_block_pool, self._block_size, self._limits)
        device_tier.bind(self._pins)
        capabilities.declare(pins=True, device_tokens=self._pool_blocks * self._block_size)

    def on_new_request(self, request: "Request") -> None:
        hints = parse_hints(request.kv_transfer_params)
        if hints.session is None or self._pins is None:
            return
        if hints.update:
            self._pins.on_hints(hints, time.monotonic())
        else:
            self._pins.on_request(hints.session)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._pins is not None:
            session = _session(request)
            own = self._pins.pinned_of(session) if session is not None else 0
            # Hits that nobody holds are also free blocks, so they are counted with those that are allocated.
            self._unallocated = max(0, -(-request.num_tokens // self._block_size) + 1 - own)
            reserve = int(self._watermark * self._pool_blocks)
            self._pins.make_room(self._unallocated + reserve, time.monotonic())
        return 0, False

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        self._unallocated = 0
        if self._pins is not None:
            self._prefills[request.request_id] = request
        session = _session(request)
        if self._pins is not None and session is not None:
            self._pins.on_scheduled(session)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        if self._pins is not None:
            needed = self._next_blocks(scheduler_output.num_scheduled_tokens)
            if scheduler_output.total_num_scheduled_tokens == 0 and self._unallocated:
                needed = 2 * self._unallocated  # nothing runs, and still the first request of the queue does not fit
            self._pins.make_room(needed, time.monotonic())
        self._unallocated = 0
        return NoMetadata()

    def _next_blocks(self, scheduled: dict[str, int]) -> int:
        """Number of blocks that running requests may allocate in the next step without asking: one each, and those for
        the rest of prompts that are computed in several steps."""
        rest = 0
        for request_id, tokens in scheduled.items():
            request = self._prefills.get(request_id)
            if request is not None:
                left = request.num_tokens - request.num_computed_tokens - tokens
                if left > 0:
                    rest += left
                else:
                    del self._prefills[request_id]
        return -(-rest // self._block_size) + len(scheduled)

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._prefills.pop(request.request_id, None)
        hints = parse_hints(request.kv_transfer_params)
        if self._pins is not None and not hints.update and (hints.session is not None or hints.once):
            self._pins.on_finished(hints, block_ids, time.monotonic())
        return False, {KEY: capabilities.active()} if hints.probe else None

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def reset_cache(self) -> bool:
        if self._pins is not None:
            self._pins.clear()
        return True

    def get_kv_connector_stats(self) -> PinStats | None:
        stats = None if self._pins is None else PinStats.of(self._pins, self._pool_blocks)
        if stats is None or stats.data == self._reported:
            return None
        self._reported = stats.data
        return stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> PinStats:
        return PinStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> PinPromMetrics:
        return PinPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return


# MultiConnector finds the classes of its children's statistics by name, even for children that it loads by module path.
with suppress(ValueError):  # it is registered already
    KVConnectorFactory.register_connector(BatchAgentPins.__name__, __name__, BatchAgentPins.__name__)


def _session(request: "Request") -> str | None:
    """The session to which a request's prompt belongs."""
    hints = parse_hints(request.kv_transfer_params)
    return None if hints.update else hints.session
