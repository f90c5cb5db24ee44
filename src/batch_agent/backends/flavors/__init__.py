"""Flavors: facts about each kind of server, as data. Nothing is inherited: a field that one server accepts is an error
on another."""

from .flavor import DialectName, Flavor, OpenAIExtensions, enforces_schema, takes_images
from .servers import COMPATIBLE, DYNAMO, LLAMACPP, LMSTUDIO, OLLAMA, SGLANG, SIM, VLLM
from .services import ANTHROPIC, AZURE, BEDROCK, GEMINI, GROQ, MISTRAL, OPENAI, OPENROUTER, TOGETHER

BY_SCHEME = {
    flavor.scheme: flavor
    for flavor in (
        VLLM,
        SGLANG,
        DYNAMO,
        OPENAI,
        ANTHROPIC,
        BEDROCK,
        AZURE,
        GEMINI,
        MISTRAL,
        GROQ,
        TOGETHER,
        OPENROUTER,
        OLLAMA,
        LMSTUDIO,
        LLAMACPP,
    )
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

__all__ = [
    "ANTHROPIC",
    "AZURE",
    "BEDROCK",
    "BY_OWNER",
    "BY_SCHEME",
    "COMPATIBLE",
    "DYNAMO",
    "GEMINI",
    "GROQ",
    "LLAMACPP",
    "LMSTUDIO",
    "MISTRAL",
    "OLLAMA",
    "OPENAI",
    "OPENROUTER",
    "SGLANG",
    "SIM",
    "TOGETHER",
    "VLLM",
    "DialectName",
    "Flavor",
    "OpenAIExtensions",
    "enforces_schema",
    "takes_images",
]
