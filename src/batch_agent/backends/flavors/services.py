"""Flavors of services on the internet. What they rest on: docs/guides/hosted-services.md."""

from .flavor import Flavor, OpenAIExtensions

_OPENAI_IMAGE_BYTES = 20 * 1024 * 1024

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
AZURE = Flavor(
    "azure",
    "https://RESOURCE.openai.azure.com/openai/v1",
    "AZURE_OPENAI_API_KEY",
    "AZURE_OPENAI_ENDPOINT",
    domain="azure.com",
    needs_key=True,
    key_header="api-key",
    native_tools=True,
    json_schema_with_tools=True,
    inflight=32,
    rate_limit_headers=True,
    managed_cache=True,
    lanes=("standard", "flex"),
    lists_models=False,
    # Models of other makers refuse `prompt_cache_key`; prefixes are cached without it.
    extensions=OpenAIExtensions(strict_schema=True, max_tokens_field="max_completion_tokens"),
    images=True,
    max_image_bytes=_OPENAI_IMAGE_BYTES,
    image_tokens=48_169,
    tested_with="a local server with its paths and headers, checked with the openai SDK's AzureOpenAI",
)
GEMINI = Flavor(
    "gemini",
    "https://generativelanguage.googleapis.com/v1beta/openai",
    "GEMINI_API_KEY",
    needs_key=True,
    native_tools=True,
    inflight=32,
    lanes=("standard", "flex", "batch"),
    ignores=("seed",),
    model_prefix="models/",
    extensions=OpenAIExtensions(seed_field="", signed_calls=True),
    images=True,
    tested_with="a local server with its responses, checked with the openai SDK",
)
MISTRAL = Flavor(
    "mistral",
    "https://api.mistral.ai/v1",
    "MISTRAL_API_KEY",
    needs_key=True,
    native_tools=True,
    inflight=32,
    extensions=OpenAIExtensions(seed_field="random_seed", stream_options=False, any_tool="any"),
    tested_with="a local server that refuses unknown fields, as it does",
)
GROQ = Flavor(
    "groq",
    "https://api.groq.com/openai/v1",
    "GROQ_API_KEY",
    needs_key=True,
    native_tools=True,
    schema_models=("gpt-oss",),
    inflight=32,
    rate_limit_headers=True,
    daily_requests=True,
    lanes=("standard", "flex"),
    extensions=OpenAIExtensions(
        strict_schema=True, max_tokens_field="max_completion_tokens", reasoning_field="reasoning"
    ),
    tested_with="a local server with its headers and refusals",
)
TOGETHER = Flavor(
    "together",
    "https://api.together.ai/v1",
    "TOGETHER_API_KEY",
    needs_key=True,
    inflight=32,
    extensions=OpenAIExtensions(reasoning_field="reasoning"),
    tested_with="a local server with its list of models",
)
OPENROUTER = Flavor(
    "openrouter",
    "https://openrouter.ai/api/v1",
    "OPENROUTER_API_KEY",
    needs_key=True,
    inflight=32,
    extensions=OpenAIExtensions(reasoning_field="reasoning", stream_options=False),
    tested_with="a local server with its errors and stream comments",
)
