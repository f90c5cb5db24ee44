"""What a flavor may say: facts about one kind of server, as data."""

import re
from dataclasses import field
from typing import Literal

from ...core.fast_dataclass import dataclass
from ...core.images import MAX_IMAGE_TOKENS
from ...core.requests import Lane

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
    prompt_ids: Literal["", "input_ids", "kv_transfer_params"] = ""
    """Where a prompt of token ids is sent; it returns those of prompts and replies. Empty: it does neither."""
    seed_field: str = "seed"
    """Name of the seed; empty: it is refused, and not sent."""
    stream_options: bool = True
    """`stream_options` is accepted. Otherwise the server reports the usage of a stream unasked."""
    any_tool: str = "required"
    """The `tool_choice` that asks for a call of any tool."""
    named_tool_choice: bool = True
    """One tool may be asked for by its name. Otherwise a call of any tool is asked for."""
    signed_calls: bool = False
    """A signature that came with a call must be sent back with it, in `extra_content`."""
    deployment_paths: bool = False
    """The model is part of the path: `/deployments/MODEL/chat/completions`."""


@dataclass(frozen=True, slots=True)
class Flavor:
    """Defaults and abilities of one kind of server."""

    name: str
    default_url: str
    key_variable: str | None = None
    """The environment variable that holds the API key."""
    url_variable: str | None = None
    """The environment variable that may name another server than the default."""
    domain: str = ""
    """Domain of the hosts of the service, if each customer has one."""
    needs_key: bool = False
    key_header: str = "Authorization"
    """Header of the key: as "Bearer KEY" in Authorization, bare in any other."""
    dialect: DialectName = "openai"
    native_tools: bool | None = None
    """None: found by probing."""
    rejects_early: bool = False
    """It validates a request before it sends the head of the stream, and before it computes anything."""
    json_schema: bool = True
    schema_models: tuple[str, ...] = ()
    """Patterns of the names of models that enforce a schema, where others refuse it."""
    json_schema_with_tools: bool = False
    inflight: int = 64
    fixed_inflight: bool = False
    keep_alive: bool = True
    """False for a server that closes idle connections without notice."""
    rate_limit_headers: bool = False
    """Its responses report limits per minute."""
    daily_requests: bool = False
    """The limit of requests that they report is per day, and not used as a pace."""
    lists_models: bool = True
    """False where the list of models is not that of the names that requests may have."""
    model_prefix: str = ""
    """What precedes the names in its list of models."""
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
        """The scheme of its URLs."""
        return self.name.replace(".", "")


def enforces_schema(flavor: Flavor, model: str) -> bool:
    """Whether a model enforces a schema, by its name."""
    if not flavor.schema_models:
        return flavor.json_schema
    return any(re.search(pattern, model) for pattern in flavor.schema_models)


def takes_images(flavor: Flavor, model: str) -> bool | None:
    """Whether a model takes images, by its name; None: unknown."""
    if flavor.images and any(re.search(pattern, model) for pattern in flavor.text_models):
        return False
    return flavor.images
