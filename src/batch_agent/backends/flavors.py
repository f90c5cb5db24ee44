"""Flavors: facts about each kind of server, as data. Nothing is inherited: a field that one server accepts is an error
on another."""

import re
from dataclasses import field
from typing import Literal

from ..core.fast_dataclass import dataclass
from ..core.images import MAX_IMAGE_TOKENS
from ..core.requests import Lane

DialectName = Literal["openai", "anthropic", "bedrock"]


@dataclass(frozen=True, slots=True)
class OpenAIExtensions:
    """Request fields that an OpenAI-compatible server accepts in addition to the common ones."""

    priority: Literal["", "low_first", "high_first", "agent_hints"] = ""
    """Which value of `priority` is served first; agent_hints: high first, inside of `nvext`."""
    missing_priority_is_last: bool = False
    """A request without a priority is served after all others, so 0 is sent too."""
    evicts_by_priority: bool = False
    """The cache keeps what has the highest priority, for as long as it was ever sent with it. The turns of a run then
    have one priority: an agent that has ended would outlive those that still wait for a tool."""
    session_field: str = ""
    session_header: str = ""
    request_id: bool = False
    cache_salt: bool = False
    context_hints: bool = False
    """The plugin batch-agent-vllm reads hints from `kv_transfer_params`. Set where the probe finds it."""
    cache_key: bool = False
    """`prompt_cache_key` routes requests with the same prefix to the same machine."""
    none_drops_tools: bool = False
    """`tool_choice: none` removes the tools from the prompt, which changes its prefix. A schema also prevents calls."""
    reasoning_field: str = ""
    """Field of an assistant message for the model's reasoning; empty: reasoning is not sent back."""
    strict_schema: bool = False
    """Schemas are enforced only in the provider's strict subset."""
    max_tokens_field: str = "max_tokens"


@dataclass(frozen=True, slots=True)
class Flavor:
    """Defaults and abilities of one kind of server."""

    name: str
    default_url: str
    key_variable: str | None = None
    """The environment variable that holds the API key."""
    url_variable: str | None = None
    """The environment variable that may name another server than the default."""
    needs_key: bool = False
    key_header: str = "Authorization"
    """Header of the key: as "Bearer KEY" in Authorization, bare in any other."""
    dialect: DialectName = "openai"
    native_tools: bool | None = None
    """None: found by probing."""
    rejects_early: bool = False
    """It validates a request before it sends the head of the stream, and before it computes anything."""
    json_schema: bool = True
    json_schema_with_tools: bool = False
    inflight: int = 64
    fixed_inflight: bool = False
    keep_alive: bool = True
    """False for a server that closes idle connections without notice."""
    rate_limit_headers: bool = False
    """Its responses report limits per minute."""
    managed_cache: bool = False
    """A prefix is cached only after the first reply, so agents that start together all pay for it."""
    lanes: tuple[Lane, ...] = ("standard",)
    """Lanes that it offers. Of a server that is not known, all: it says itself what it does not offer."""
    ignores: tuple[str, ...] = ()
    """Sampling options that it does not support."""
    extensions: OpenAIExtensions = field(default_factory=OpenAIExtensions)
    images: bool | None = None
    """Whether its models take images; None: found by probing, or by the name of the model."""
    max_image_bytes: int | None = None
    max_image_side: int | None = None
    image_tokens: int = MAX_IMAGE_TOKENS
    """Most tokens of one image, on the model that counts most."""
    text_models: tuple[str, ...] = ()
    """Patterns of the names of models that take no images, where the others do."""
    tested_with: str = "not run against the real service"
    """What it was tested with, for the table in the docs."""

    @property
    def is_hosted(self) -> bool:
        """Whether it is a service on the internet."""
        return self.default_url.startswith("https://")

    @property
    def scheme(self) -> str:
        """The scheme of its URLs; its name if it has none."""
        return next((scheme for scheme, each in BY_SCHEME.items() if each is self), self.name)


_OPENAI_IMAGE_BYTES = 20 * 1024 * 1024


def takes_images(flavor: Flavor, model: str) -> bool | None:
    """Whether a model takes images, by its name; None: unknown."""
    if flavor.images and any(re.search(pattern, model) for pattern in flavor.text_models):
        return False
    return flavor.images


VLLM = Flavor(
    "vllm",
    "http://127.0.0.1:8000/v1",
    "VLLM_API_KEY",
    rejects_early=True,
    inflight=32,
    extensions=OpenAIExtensions(priority="low_first", request_id=True, cache_salt=True, reasoning_field="reasoning"),
    tested_with="0.32.0 (CPU), in each CI run",
)
SGLANG = Flavor(
    "sglang",
    "http://127.0.0.1:30000/v1",
    "SGLANG_API_KEY",
    inflight=32,
    extensions=OpenAIExtensions(
        priority="high_first",
        missing_priority_is_last=True,
        session_field="session_id",
        cache_salt=True,
        none_drops_tools=True,
        reasoning_field="reasoning_content",
    ),
    tested_with="0.5.23 (CPU), nightly",
)
DYNAMO = Flavor(
    "dynamo",
    "http://127.0.0.1:8000/v1",
    "DYNAMO_API_KEY",
    inflight=32,
    extensions=OpenAIExtensions(
        priority="agent_hints",
        session_header="x-dynamo-session-id",
        cache_salt=True,
        none_drops_tools=True,
        reasoning_field="reasoning_content",
    ),
    tested_with="1.6.1 (frontend, KV router, mocker workers), in each CI run",
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
    rate_limit_headers=True,
    managed_cache=True,
    lanes=("standard", "flex", "batch"),
    extensions=OpenAIExtensions(cache_key=True, strict_schema=True, max_tokens_field="max_completion_tokens"),
    images=True,
    max_image_bytes=_OPENAI_IMAGE_BYTES,
    image_tokens=48_169,  # gpt-4o-mini: 2,833 and 5,667 for each of 8 tiles
    text_models=(r"^gpt-3\.5", r"^gpt-4(-\d{4}|-0613)?$", r"^o1-mini", r"^o3-mini", r"^gpt-oss"),
)
ANTHROPIC = Flavor(
    "anthropic",
    "https://api.anthropic.com/v1",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    needs_key=True,
    key_header="x-api-key",
    dialect="anthropic",
    native_tools=True,
    json_schema_with_tools=True,
    inflight=32,
    rate_limit_headers=True,
    managed_cache=True,
    lanes=("standard", "batch"),
    ignores=("seed",),
    images=True,
    max_image_bytes=5 * 1024 * 1024,
    max_image_side=8_000,
    image_tokens=4_784,
    text_models=(r"^claude-(2|instant)",),
    tested_with="its dialect on vLLM 0.32.0 (CPU), in each CI run",
)
_BEDROCK_TEXT_MODELS = (
    r"amazon\.(nova-micro|titan)",
    r"ai21\.",
    r"cohere\.",
    r"deepseek\.",
    r"openai\.gpt-oss",
    r"anthropic\.claude-(v2|instant)",
    r"meta\.llama(3-1|3-3|3-8b|3-70b|3-2-(1|3)b)",
    r"mistral\.(mistral-7b|mixtral)",
    r"minimax\.",
    r"moonshot(ai)?\.kimi-k2-thinking",
    r"qwen\.qwen3-(32b|235b|coder)",
    r"zai\.glm-(4\.7|5)",
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
    lanes=("standard", "flex"),
    ignores=("seed",),
    images=True,
    max_image_bytes=3_932_160,
    max_image_side=8_000,
    text_models=_BEDROCK_TEXT_MODELS,
    tested_with="a local server with its wire format, checked with botocore",
)
LLAMACPP = Flavor(
    "llama.cpp",
    "http://127.0.0.1:8080/v1",
    images=False,  # a server with a projector says so: see probe.py
    native_tools=False,
    inflight=4,
    fixed_inflight=True,
    keep_alive=False,
    tested_with="embedded (xllamacpp), in each CI run",
)
SIM = Flavor(
    "sim",
    "http://127.0.0.1:8000/v1",
    rejects_early=True,
    images=True,
    json_schema_with_tools=True,
    inflight=128,
    lanes=("standard", "flex", "batch"),
    tested_with="in each CI run",
)
COMPATIBLE = Flavor(
    "openai-compatible",
    "http://127.0.0.1:8000/v1",
    "OPENAI_API_KEY",
    json_schema=False,
    inflight=32,
    lanes=("standard", "flex", "batch"),
)

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
"""Flavors by the `owned_by` field of a server's model list."""
