"""Configuration of the simulated engine and of the simulated model."""

from dataclasses import field
from typing import Literal

from ..core.fast_dataclass import dataclass

KV_BYTES_PER_TOKEN = 57_344
"""That of a 7B model with grouped-query attention."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Rates of spontaneous faults, as shares of the generation requests."""

    error_500: float = 0.0
    """Share answered with HTTP 500."""
    error_429: float = 0.0
    """Share answered with HTTP 429 and a Retry-After header."""
    reset: float = 0.0
    """Share whose connection is reset."""
    stall: float = 0.0
    """Share that gets no byte for `stall_s` seconds."""
    garbage: float = 0.0
    """Share answered with a body that is not JSON."""
    truncated: float = 0.0
    """Share whose response ends in the middle."""
    flex_unavailable: float = 0.0
    """Share of the flex requests that are refused for lack of capacity."""
    retry_after_s: float = 1.0
    """Seconds in the Retry-After header of a 429."""
    stall_s: float = 5.0
    """Seconds that a stalled response waits."""
    seed: int = 0
    """Seed of the faults."""

    def __post_init__(self) -> None:
        shares = (self.error_500, self.error_429, self.reset, self.stall, self.garbage, self.truncated)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(f"fault rates are shares of all requests: each >= 0, together <= 1, got {shares}")
        if not 0 <= self.flex_unavailable <= 1:
            raise ValueError(f"flex_unavailable must be between 0 and 1, got {self.flex_unavailable!r}")


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Limits per minute, like those of hosted services: token buckets that begin full. A request beyond a limit is
    answered with HTTP 429 and a Retry-After header."""

    rpm: int | None = None
    """Requests per minute. None: not limited."""
    tpm: int | None = None
    """Tokens per minute, prompts and answers together. None: not limited."""
    burst_s: float = 60.0
    """Seconds of the limits that may be used at once; less than a minute for a service that enforces its limits over
    shorter times."""
    headers: bool = True
    """Whether to report the limits in each response, in headers with OpenAI's names."""

    def __post_init__(self) -> None:
        for name in ("rpm", "tpm"):
            if (limit := getattr(self, name)) is not None and limit < 1:
                raise ValueError(f"{name} must be at least 1, got {limit!r}")
        if not 0 < self.burst_s <= 60:
            raise ValueError(f"burst_s must be above 0 and at most 60, got {self.burst_s!r}")


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Batches of the simulated service."""

    seconds: float = 2.0
    """Seconds from the creation of a batch to its end, by a clock that tests can move."""
    max_lines: int = 50_000
    """Maximum number of requests in a batch of OpenAI's API."""
    enqueued_tokens: int | None = None
    """Maximum number of prompt tokens in batches that have not ended; further batches are refused. None: not
    limited."""

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise ValueError(f"seconds must not be negative, got {self.seconds!r}")
        for name in ("max_lines", "enqueued_tokens"):
            if (limit := getattr(self, name)) is not None and limit < 1:
                raise ValueError(f"{name} must be at least 1, got {limit!r}")


@dataclass(frozen=True, slots=True)
class SimConfig:
    """One engine: its memory, its batch limits and its step times. The defaults are a 3B model on a 24 GB card.

    A step takes `step_base_ms`, plus `step_us_per_seq` for each sequence in it, plus `prefill_us_per_token` for each
    prompt token computed in it, plus `step_ns_per_kv_token` for each token of context that attention reads; all of it
    `slowdown` times. Before that, the server's front end spends `request_overhead_ms` on each request for answers and
    `prompt_overhead_ms` on each prompt in it, one request at a time, whether or not steps take time.
    """

    model: str = "sim"
    """Model name that the server reports and accepts."""
    max_model_len: int = 16_384
    """Maximum length of prompt and answer together, in tokens."""
    num_blocks: int = 7_168
    """Blocks of the KV cache."""
    block_size: int = 16
    """Tokens per block."""
    host_blocks: int = 0
    """Blocks of KV cache in host memory, which gets a copy of every computed block until it is full. 0: none."""
    host_exclusive: bool = False
    """Whether the host memory has contexts of waiting agents instead, as with batch-agent-vllm. Only for sequences that
    name their agent, which requests over HTTP do not."""
    host_us_per_token: float = 1.3
    """Time to copy a token's KV cache between host memory and the device, in microseconds. Steps wait for it."""
    prefix_caching: bool = True
    """Whether to keep the blocks of finished requests for prompts with the same beginning."""
    max_num_seqs: int = 256
    """Maximum number of running sequences. Others wait."""
    max_num_batched_tokens: int = 2_048
    """Tokens computed per step, prompts and answers together."""
    reserve_full_prompt: bool = True
    """Whether to admit a request only when blocks for its whole prompt are free."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    """Order of the waiting requests: first come first served, or by the request's `priority`."""
    step_base_ms: float = 20.0
    """Time of each step, in ms."""
    step_us_per_seq: float = 25.0
    """Additional time per running sequence, in microseconds."""
    prefill_us_per_token: float = 100.0
    """Additional time per prompt token, in microseconds."""
    step_ns_per_kv_token: float = 380.0
    """Additional time per token of context, in nanoseconds."""
    slowdown: float = 1.0
    """Factor on the time of every step."""
    request_overhead_ms: float = 0.0
    """Front end time per request, in ms."""
    prompt_overhead_ms: float = 0.0
    """Front end time per prompt of a request, in ms."""
    chunk_tokens: int = 1
    """Tokens per event of a streamed answer."""
    zero_latency: bool = False
    """Whether to answer at once, without simulating time."""
    list_prompts: bool = True
    """Whether to accept lists of prompts in /v1/completions."""
    max_list_prompts: int = 1_024
    """Maximum number of prompts in such a list."""
    batch_chat: bool = True
    """Whether to serve /v1/chat/completions/batch."""
    faults: FaultRates = field(default_factory=FaultRates)
    rate_limits: RateLimits = field(default_factory=RateLimits)
    batches: BatchConfig = field(default_factory=BatchConfig)

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
        if self.host_blocks < 0 or self.host_us_per_token < 0:
            raise ValueError(
                f"host_blocks and host_us_per_token must not be negative, got {self.host_blocks!r} and "
                f"{self.host_us_per_token!r}"
            )
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f"policy must be 'fcfs' or 'priority', got {self.policy!r}")

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def host_gib(self) -> float:
        """Size of the host tier, in the unit of vLLM's --kv-offloading-size."""
        return self.host_blocks * self.block_size * KV_BYTES_PER_TOKEN / 2**30

    @property
    def context_tokens(self) -> int:
        """Length of the longest served sequence. Never more than the KV cache holds, so every admitted request can
        finish."""
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

    def copy_seconds(self, blocks: int) -> float:
        """Time of copies between host memory and the device."""
        return self.slowdown * self.host_us_per_token * 1e-6 * blocks * self.block_size

    def front_end_seconds(self, prompts: int) -> float:
        return (self.request_overhead_ms + self.prompt_overhead_ms * prompts) * 1e-3


@dataclass(frozen=True, slots=True)
class Script:
    """Behavior of the simulated model where a prompt has no `[[sim: ...]]` directive.

    It calls tools in `tool_turns` turns, `parallel_calls` at a time, with string arguments out of `keys` values. Then
    it answers with an instance of the response schema, or with `answer_tokens` tokens of text. Free strings in an
    instance have `string_tokens` tokens. The seed changes all of them."""

    tool_turns: int = 1
    """Turns in which the model calls tools before it answers."""
    parallel_calls: int = 1
    """Tool calls per turn."""
    keys: int = 8
    """Number of different values of string arguments. With fewer values, more calls can be shared."""
    answer_tokens: int = 64
    """Tokens of an answer without a schema."""
    string_tokens: int = 6
    """Tokens of a free string in an answer with a schema."""
    seed: int = 0
    """Seed of tool arguments and answers."""

    def __post_init__(self) -> None:
        for name in ("parallel_calls", "keys", "answer_tokens", "string_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
