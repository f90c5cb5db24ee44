"""Prometheus metrics of the pins on vLLM's /metrics page, by which clients see that the plugin is active."""

from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from batch_agent_vllm import __version__
from batch_agent_vllm.device_pins import DevicePins

_SHARE = "pinned_share"


@dataclass
class PinStats(KVConnectorStats):
    """Pinned share of the device blocks, and counts since the start of the engine."""

    data: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, pins: DevicePins, pool_blocks: int) -> "PinStats":
        return cls(data={_SHARE: pins.pinned_blocks / pool_blocks, **asdict(pins.counts)})

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> "PinStats":
        self.data = other.data or self.data  # counts are totals, so the later report replaces the earlier one
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"batch_agent_{name}": round(value, 3) for name, value in self.data.items()}

    def is_empty(self) -> bool:
        return not self.data


class PinPromMetrics(KVConnectorPromMetrics):
    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        info = metric_types[Gauge](
            name="batch_agent:plugin_info",
            documentation="The batch-agent-vllm plugin is active.",
            labelnames=[*labelnames, "version"],
        )
        self._share = metric_types[Gauge](
            name="batch_agent:pinned_share",
            documentation="Share of the device's KV blocks that is kept for waiting sessions.",
            labelnames=labelnames,
        )
        self._pins = metric_types[Counter](
            name="batch_agent:pins",
            documentation="Pins of waiting sessions, by what became of them.",
            labelnames=[*labelnames, "event"],
        )
        self._seen: dict[tuple[int, str], int] = {}
        for labels in per_engine_labelvalues.values():
            info.labels(*labels, __version__).set(1)
            self._share.labels(*labels).set(0)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        counts = dict(transfer_stats_data)
        self._share.labels(*labels).set(counts.pop(_SHARE, 0.0))
        for event, count in counts.items():
            before = self._seen.get((engine_idx, event), 0)
            self._pins.labels(*labels, event).inc(max(0, count - before))
            self._seen[engine_idx, event] = count
