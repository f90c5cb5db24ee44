"""What Prometheus is told: names, labels and buckets. Needs prometheus-client."""

import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ...core.errors import SpecError

_RUN = ("stage", "backend", "model")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_OURS = {*_RUN, "outcome", "error", "state", "kind", "tool", "source", "ok", "version", "le"}


class Families:
    """One for a registry: all runs that are told of there share them. It must not hold the registry, which would then
    live for ever."""

    def __init__(self, registry: CollectorRegistry, constant: Sequence[str]) -> None:
        """`constant`: the names of labels whose values each run brings along."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"batch_agent_{name}", text, (*constant, *_RUN, *labels), registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"batch_agent_{name}", text, (*constant, *labels), registry=registry)

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            names = (*constant, *_RUN, *labels)
            return Histogram(f"batch_agent_{name}_seconds", text, names, registry=registry, buckets=_SECONDS)

        self.constant = tuple(constant)
        self.finished = counter("agents_finished_total", "Agents that are done.", "outcome", "error")
        self.agents = gauge("agents", "Agents under way.", *_RUN, "state")
        self.inputs = gauge("inputs", "Inputs of the runs under way, as far as they are known.", *_RUN)
        self.inputs_left = gauge("inputs_left", "Those of them that have no result yet.", *_RUN)
        self.tokens = counter("tokens_total", "Tokens of answered requests.", "kind")
        self.cost = counter("cost_usd_total", "What the tokens cost, where a price is known.")
        self.turn = seconds("turn", "From a request to its whole answer.")
        self.ttft = seconds("ttft", "From a request to its first token, of streamed turns.")
        self.queue = seconds("queue", "What a turn waited for a slot.")
        self.agent = seconds("agent", "From an agent's start to its result.")
        self.tool = seconds("tool", "What an executed tool call took.", "tool")
        self.calls = counter("tool_calls_total", "Tool calls of agents.", "tool", "source", "ok")
        self.retries = counter("request_retries_total", "Requests that failed and are sent again.", "kind")
        self.slots_in_use = gauge("slots_in_use", "Requests in flight.", "backend")
        self.slots_limit = gauge("slots_limit", "Requests that may be in flight.", "backend")
        self.slots_waiting = gauge("slots_waiting", "Agents that wait for a slot.", "backend")
        self.residents = gauge("resident_agents", "Agents with a place in the KV cache.", "backend")
        self.kv_held = gauge("kv_tokens_held", "Tokens that they hold there.", "backend")
        self.kv_limit = gauge("kv_tokens_limit", "Tokens that they may hold there.", "backend")
        self.kv_usage = gauge("kv_usage_ratio", "The share of its KV cache in use, as the server says.", "backend")
        self.paused = gauge("paused", "Runs that send nothing at the moment.")
        self.info = gauge("run_info", "1 for each run under way.", *_RUN, "version")


_made: "WeakKeyDictionary[CollectorRegistry, Families]" = WeakKeyDictionary()
_making = threading.Lock()


def families_of(registry: CollectorRegistry, constant: Sequence[str]) -> Families:
    """Those that the registry has, or new ones. Raises SpecError for labels that it cannot have."""
    if taken := sorted(_OURS.intersection(constant)):
        raise SpecError(f"labels={{{taken[0]!r}: ...}} is a label of ours: give yours another name.")
    with _making:
        known = _made.get(registry)
        if known is None:
            try:
                known = _made[registry] = Families(registry, constant)
            except ValueError as error:
                raise SpecError(f"The registry cannot take the metrics: {error}. Give one of your own.") from error
    if known.constant != tuple(constant):
        raise SpecError(
            f"All metrics of a registry have the same labels: {list(known.constant)} are there, {list(constant)} were "
            "given. Give the same ones, in the same order, or another registry."
        )
    return known
