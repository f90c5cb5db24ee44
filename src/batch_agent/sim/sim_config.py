"""Configuration of the simulated engine and of the simulated model."""

from dataclasses import field
from typing import Literal

from ..core.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often each fault happens by itself, as a share of the generation requests."""

    error_500: float = 0.0
    error_429: float = 0.0
    reset: float = 0.0
    stall: float = 0.0
    garbage: float = 0.0
    truncated: float = 0.0
    retry_after_s: float = 1.0
    stall_s: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        shares = (self.error_500, self.error_429, self.reset, self.stall, self.garbage, self.truncated)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(f"fault rates are shares of all requests: each >= 0, together <= 1, got {shares}")


@dataclass(frozen=True, slots=True)
class SimConfig:
    """One engine: its memory, its batch limits and its step times. The defaults are a 3B model on a 24 GB card.

    A step takes `step_base_ms`, plus `step_us_per_seq` for each sequence in it, plus `prefill_us_per_token` for each
    prompt token computed in it, plus `step_ns_per_kv_token` for each token of context that attention reads; all of it
    `slowdown` times. Before that, the server's front end spends `request_overhead_ms` on each request for answers and
    `prompt_overhead_ms` on each prompt in it, one request at a time, whether or not steps take time.
    """

    model: str = "sim"
    max_model_len: int = 16_384
    num_blocks: int = 7_168
    block_size: int = 16
    prefix_caching: bool = True
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2_048
    reserve_full_prompt: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    step_base_ms: float = 20.0
    step_us_per_seq: float = 25.0
    prefill_us_per_token: float = 100.0
    step_ns_per_kv_token: float = 380.0
    slowdown: float = 1.0
    request_overhead_ms: float = 0.0
    prompt_overhead_ms: float = 0.0
    chunk_tokens: int = 1
    zero_latency: bool = False
    list_prompts: bool = True
    max_list_prompts: int = 1_024
    batch_chat: bool = True
    faults: FaultRates = field(default_factory=FaultRates)

    def __post_init__(self) -> None:
        for name in (
            "max_model_len",
            "num_blocks",
            "block_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "chunk_tokens",
            "max_list_prompts",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        for name in ("request_overhead_ms", "prompt_overhead_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)!r}")
        if self.slowdown <= 0:
            raise ValueError(f"slowdown must be above 0, got {self.slowdown!r}")
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f"policy must be 'fcfs' or 'priority', got {self.policy!r}")

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def context_tokens(self) -> int:
        """The longest sequence served: never more than the KV cache holds, so every admitted request can finish."""
        return min(self.max_model_len, self.kv_tokens)

    def step_seconds(self, sequences: int, prefill_tokens: int, kv_tokens: float) -> float:
        if self.zero_latency:
            return 0.0
        return self.slowdown * (
            self.step_base_ms * 1e-3
            + self.step_us_per_seq * 1e-6 * sequences
            + self.prefill_us_per_token * 1e-6 * prefill_tokens
            + self.step_ns_per_kv_token * 1e-9 * kv_tokens
        )

    def front_end_seconds(self, prompts: int) -> float:
        return (self.request_overhead_ms + self.prompt_overhead_ms * prompts) * 1e-3


@dataclass(frozen=True, slots=True)
class Script:
    """How the simulated model behaves where a prompt gives no `[[sim: ...]]` directive.

    It calls tools for `tool_turns` turns, `parallel_calls` at a time, with string arguments out of `keys` values; then
    it answers: an instance of the response schema, or `answer_tokens` tokens of text. Free strings inside an instance
    are `string_tokens` long. The seed changes all of them.
    """

    tool_turns: int = 1
    parallel_calls: int = 1
    keys: int = 8
    answer_tokens: int = 64
    string_tokens: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("parallel_calls", "keys", "answer_tokens", "string_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
