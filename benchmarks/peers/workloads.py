"""What is asked of the peers, of which servers."""

from dataclasses import dataclass, replace

from batch_agent.sim import FaultRates, Script, SimConfig
from benchmarks.peers.participants import CHECKPOINTS, ENDPOINTS, FAULTS, SINGLE, STREAMS, TOOLS
from benchmarks.pools import ENGINE

MODEL_S, RETRY_AFTER_S = 0.06, 0.25
TOKENS, TOKEN_MS = 200, 5.0
AT_ONCE = SimConfig(zero_latency=True, prefix_caching=False)
# A stall before the answer is a latency that does not depend on how many wait: slots are then the clients' own.
LATE = replace(AT_ONCE, faults=FaultRates(stall=1.0, stall_s=MODEL_S))
FAULTY = replace(
    AT_ONCE,
    faults=FaultRates(error_500=0.05, error_429=0.05, stall=0.9, stall_s=MODEL_S, retry_after_s=RETRY_AFTER_S),
)
TYPING = SimConfig(
    step_base_ms=TOKEN_MS,
    step_us_per_seq=0,
    prefill_us_per_token=0,
    step_ns_per_kv_token=0,
    max_num_batched_tokens=1_000_000,
    prefix_caching=False,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """`what` each agent does; `kind` is what a peer must be able to do for it; each endpoint is such a `server`."""

    what: str
    kind: str
    server: SimConfig
    agents: int
    inflight: int
    keys: int = 1
    tool_s: float | None = None
    answer_tokens: int = 64
    endpoints: int = 1

    @property
    def script(self) -> Script:
        return Script(keys=self.keys, answer_tokens=self.answer_tokens)

    @property
    def turns(self) -> int:
        return 1 if self.tool_s is None else 2

    @property
    def model_s(self) -> float:
        """Between a request and the end of its answer, for a client that costs nothing."""
        if self.kind == STREAMS:
            return self.answer_tokens * TOKEN_MS / 1000
        return self.server.faults.stall_s if self.server.faults.stall else 0.0

    def scaled(self, share: float) -> "Workload":
        return replace(self, agents=max(round(self.agents * share), 2 * self.keys, 10))


_ONE, _TWO = "one turn, a server without latency", "two turns, a model of 60 ms, a tool of"
_CHECKPOINT = Workload("two turns, a server without latency", TOOLS, AT_ONCE, 2_000, 64, keys=8, tool_s=0.0)
WORKLOADS = {
    "single_2000": Workload(_ONE, SINGLE, AT_ONCE, 2_000, 64),
    "single_10000": Workload(_ONE, SINGLE, AT_ONCE, 10_000, 64),
    "one_key_50": Workload(f"{_TWO} 200 ms", TOOLS, LATE, 50, 64, 1, 0.2),
    "one_key_200": Workload(f"{_TWO} 200 ms", TOOLS, LATE, 200, 64, 1, 0.2),
    "ten_keys_64": Workload(f"{_TWO} 200 ms", TOOLS, LATE, 1_000, 64, 10, 0.2),
    "ten_keys_256": Workload(f"{_TWO} 200 ms", TOOLS, LATE, 1_000, 256, 10, 0.2),
    "slow_tool": Workload(f"{_TWO} 0.8 s", TOOLS, LATE, 100, 32, 10, 0.8),
    "streaming": Workload("streamed answers of 200 tokens", STREAMS, TYPING, 256, 64, answer_tokens=TOKENS),
    "four_endpoints": Workload(
        "one prompt, 4 endpoints", ENDPOINTS, ENGINE, 1_000, 1_024, answer_tokens=136, endpoints=4
    ),
    "checkpoint_off": _CHECKPOINT,
    "checkpoint_on": replace(_CHECKPOINT, what=f"{_CHECKPOINT.what}, with a checkpoint", kind=CHECKPOINTS),
    "faults": Workload("one turn, a model of 60 ms, 5 % 500s, 5 % 429s", FAULTS, FAULTY, 1_000, 64),
}
QUICK = dict.fromkeys(("single_2000", "single_10000", "ten_keys_64", "ten_keys_256", "checkpoint_off"), 0.1)
QUICK |= {"checkpoint_on": 0.1, "faults": 0.2, "streaming": 0.25, "four_endpoints": 0.25}
