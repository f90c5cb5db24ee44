"""Prometheus metric families: names, labels and buckets. Needs prometheus-client."""

import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ...core.errors import SpecError

_RUN = ("stage", "backend", "model")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_RESERVED_LABELS = {*_RUN, "outcome", "error", "state", "kind", "tool", "source", "ok", "version", "le"}


class Families:
    """Metric families of a registry, shared by all its runs. Holds no reference to the registry, which can thus be
    garbage-collected."""

    def __init__(self, registry: CollectorRegistry, constant: Sequence[str]) -> None:
        """`constant`: names of the user's labels, whose values each run sets."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"batch_agent_{name}", text, (*constant, *_RUN, *labels), registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"batch_agent_{name}", text, (*constant, *labels), registry=registry)

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            names = (*constant, *_RUN, *labels)
            return Histogram(f"batch_agent_{name}_seconds", text, names, registry=registry, buckets=_SECONDS)

        self.constant = tuple(constant)
        self.finished = counter("agents_finished_total", "Finished agents.", "outcome", "error")
        self.agents = gauge("agents", "Agents in progress.", *_RUN, "state")
        self.inputs = gauge("inputs", "Inputs of active runs, as far as known.", *_RUN)
        self.inputs_left = gauge("inputs_left", "Inputs of active runs without a result.", *_RUN)
        self.tokens = counter("tokens_total", "Tokens of completed requests.", "kind")
        self.cost = counter("cost_usd_total", "Cost of the tokens in US dollars, where the price is known.")
        self.turn = seconds("turn", "Time from a request to the end of its response.")
        self.ttft = seconds("ttft", "Time from a request to its first token, for streamed turns.")
        self.queue = seconds("queue", "Time that a turn waited for a slot.")
        self.agent = seconds("agent", "Time from the start of an agent to its result.")
        self.tool = seconds("tool", "Duration of executed tool calls.", "tool")
        self.calls = counter("tool_calls_total", "Tool calls of agents.", "tool", "source", "ok")
        self.retries = counter("request_retries_total", "Retried requests.", "kind")
        self.slots_in_use = gauge("slots_in_use", "Requests in flight.", "backend")
        self.slots_limit = gauge("slots_limit", "Limit of requests in flight.", "backend")
        self.slots_waiting = gauge("slots_waiting", "Agents waiting for a slot.", "backend")
        self.residents = gauge("resident_agents", "Agents resident in the KV cache.", "backend")
        self.kv_held = gauge("kv_tokens_held", "KV cache tokens held by resident agents.", "backend")
        self.kv_limit = gauge("kv_tokens_limit", "KV cache tokens available to resident agents.", "backend")
        self.kv_usage = gauge("kv_usage_ratio", "KV cache usage reported by the server.", "backend")
        self.paused = gauge("paused", "Paused runs.")
        self.info = gauge("run_info", "1 for each active run.", *_RUN, "version")


_families: "WeakKeyDictionary[CollectorRegistry, Families]" = WeakKeyDictionary()
_lock = threading.Lock()


def families_of(registry: CollectorRegistry, constant: Sequence[str]) -> Families:
    """The metric families of the registry, created if needed. Raises SpecError for invalid labels."""
    if reserved := sorted(_RESERVED_LABELS.intersection(constant)):
        raise SpecError(f"labels={{{reserved[0]!r}: ...}} is a reserved label. Choose another name.")
    with _lock:
        known = _families.get(registry)
        if known is None:
            try:
                known = _families[registry] = Families(registry, constant)
            except ValueError as error:
                raise SpecError(f"The metrics cannot be registered: {error}. Pass another registry.") from error
    if known.constant != tuple(constant):
        raise SpecError(
            f"All metrics of a registry must have the same labels: it has {list(known.constant)}, got {list(constant)}."
            " Pass the same labels in the same order, or another registry."
        )
    return known
