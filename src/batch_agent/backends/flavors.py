"""Who serves a dialect: facts about each server, as data. Nothing is inherited: a field that one server takes is an
error on the next."""

from dataclasses import field
from typing import Literal

from ..core.fast_dataclass import dataclass

DialectName = Literal["openai", "anthropic", "bedrock"]


@dataclass(frozen=True, slots=True)
class OpenAIExtensions:
    """What an OpenAI-compatible server takes beside the common fields, and where."""

    priority: Literal["", "low_first", "high_first", "agent_hints"] = ""
    """Which number goes first, in `priority`; agent_hints: high first, below `nvext`."""
    session_field: str = ""
    session_header: str = ""
    request_id: bool = False
    cache_salt: bool = False
    cache_key: bool = False
    """`prompt_cache_key` sends requests with the same prefix to the same machine."""
    none_drops_tools: bool = False
    """`tool_choice: none` takes the tools out of the prompt, and its prefix with them. A schema rules calls out too."""
    reasoning_field: str = ""
    """Where an assistant message carries what the model thought; empty: it is not sent back."""
    strict_schema: bool = False
    """Schemas are only enforced in the provider's strict subset."""
    max_tokens_field: str = "max_tokens"


@dataclass(frozen=True, slots=True)
class Flavor:
    name: str
    default_url: str
    key_variable: str | None = None
    """The environment variable that holds the API key."""
    url_variable: str | None = None
    """The environment variable that may name another server than the default."""
    needs_key: bool = False
    dialect: DialectName = "openai"
    native_tools: bool | None = None
    """None: found by probing."""
    refuses_at_once: bool = False
    """It begins a stream, before anything is computed, only for a request that it takes."""
    json_schema: bool = True
    json_schema_with_tools: bool = False
    inflight: int = 64
    fixed_inflight: bool = False
    keeps_alive: bool = True
    """False for a server that closes idle connections without notice."""
    managed_cache: bool = False
    """A prefix can be read from its cache only after the first answer: agents that start together all pay for it."""
    ignores: tuple[str, ...] = ()
    """Sampling options that it has no word for."""
    extras: OpenAIExtensions = field(default_factory=OpenAIExtensions)
    tested: str = "not run against the real service"
    """Against what it was run, for the table in the docs."""


VLLM = Flavor(
    "vllm",
    "http://127.0.0.1:8000/v1",
    "VLLM_API_KEY",
    refuses_at_once=True,
    inflight=32,
    extras=OpenAIExtensions(priority="low_first", request_id=True, cache_salt=True, reasoning_field="reasoning"),
    tested="0.32.0 (CPU), in each CI run",
)
SGLANG = Flavor(
    "sglang",
    "http://127.0.0.1:30000/v1",
    "SGLANG_API_KEY",
    inflight=32,
    extras=OpenAIExtensions(
        priority="high_first",
        session_field="session_id",
        cache_salt=True,
        none_drops_tools=True,
        reasoning_field="reasoning_content",
    ),
    tested="0.5.23 (CPU), nightly",
)
DYNAMO = Flavor(
    "dynamo",
    "http://127.0.0.1:8000/v1",
    "DYNAMO_API_KEY",
    inflight=32,
    extras=OpenAIExtensions(
        priority="agent_hints",
        session_header="x-dynamo-session-id",
        cache_salt=True,
        none_drops_tools=True,
        reasoning_field="reasoning_content",
    ),
    tested="1.6.1 (frontend, KV router, mocker workers), in each CI run",
)
OPENAI = Flavor(
    "openai",
    "https://api.openai.com/v1",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    needs_key=True,
    native_tools=True,
    json_schema_with_tools=True,
    inflight=32,
    managed_cache=True,
    extras=OpenAIExtensions(cache_key=True, strict_schema=True, max_tokens_field="max_completion_tokens"),
)
ANTHROPIC = Flavor(
    "anthropic",
    "https://api.anthropic.com/v1",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    needs_key=True,
    dialect="anthropic",
    native_tools=True,
    json_schema_with_tools=True,
    inflight=32,
    managed_cache=True,
    ignores=("seed",),
    tested="its dialect on vLLM 0.32.0 (CPU), in each CI run",
)
BEDROCK = Flavor(
    "bedrock",
    "",
    "AWS_BEARER_TOKEN_BEDROCK",
    dialect="bedrock",
    native_tools=True,
    json_schema_with_tools=False,
    inflight=32,
    managed_cache=True,
    ignores=("seed",),
    tested="a local server with its wire format, checked with botocore",
)
LLAMACPP = Flavor(
    "llama.cpp",
    "http://127.0.0.1:8080/v1",
    native_tools=False,
    inflight=4,
    fixed_inflight=True,
    keeps_alive=False,
    tested="embedded (xllamacpp), in each CI run",
)
SIM = Flavor(
    "sim",
    "http://127.0.0.1:8000/v1",
    refuses_at_once=True,
    json_schema_with_tools=True,
    inflight=128,
    tested="in each CI run",
)
COMPATIBLE = Flavor("openai-compatible", "http://127.0.0.1:8000/v1", "OPENAI_API_KEY", json_schema=False, inflight=32)

BY_SCHEME = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "dynamo": DYNAMO,
    "openai": OPENAI,
    "anthropic": ANTHROPIC,
    "bedrock": BEDROCK,
}

BY_OWNER = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "nvidia": DYNAMO,
    "llamacpp": LLAMACPP,
    "openai": OPENAI,
    "batch-agent-sim": SIM,
}
"""What a server calls itself in `owned_by` of its model list."""
