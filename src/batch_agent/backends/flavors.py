"""Who serves a dialect: facts about each server, as data. A new OpenAI-compatible server is one value here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flavor:
    name: str
    default_url: str
    key_variable: str | None = None
    """The environment variable that holds the API key."""
    needs_key: bool = False
    native_tools: bool | None = None
    """None: found by probing."""
    json_schema: bool = True
    json_schema_beside_tools: bool = False
    inflight: int = 64
    fixed_inflight: bool = False
    max_tokens_field: str = "max_tokens"
    keeps_alive: bool = True
    """False for a server that closes idle connections without notice."""


VLLM = Flavor("vllm", "http://127.0.0.1:8000/v1", "VLLM_API_KEY", inflight=128)
SGLANG = Flavor("sglang", "http://127.0.0.1:30000/v1", "SGLANG_API_KEY", inflight=128)
DYNAMO = Flavor("dynamo", "http://127.0.0.1:8000/v1", "DYNAMO_API_KEY", inflight=128)
OPENAI = Flavor(
    "openai",
    "https://api.openai.com/v1",
    "OPENAI_API_KEY",
    needs_key=True,
    native_tools=True,
    json_schema_beside_tools=True,
    inflight=32,
    max_tokens_field="max_completion_tokens",
)
LLAMACPP = Flavor(
    "llama.cpp", "http://127.0.0.1:8080/v1", native_tools=False, inflight=4, fixed_inflight=True, keeps_alive=False
)
SIM = Flavor("sim", "http://127.0.0.1:8000/v1", json_schema_beside_tools=True, inflight=128)
COMPATIBLE = Flavor("openai-compatible", "http://127.0.0.1:8000/v1", "OPENAI_API_KEY", json_schema=False, inflight=32)

BY_SCHEME = {"vllm": VLLM, "sglang": SGLANG, "dynamo": DYNAMO, "openai": OPENAI}

BY_OWNER = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "nvidia": DYNAMO,
    "llamacpp": LLAMACPP,
    "openai": OPENAI,
    "batch-agent-sim": SIM,
}
"""What a server calls itself in `owned_by` of its model list."""
