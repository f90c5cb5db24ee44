"""Flavors of servers that users run themselves. What those of Ollama, LM Studio and llama.cpp rest on:
docs/guides/local-servers.md."""

from .flavor import Flavor, OpenAIExtensions

VLLM = Flavor(
    "vllm",
    "http://127.0.0.1:8000/v1",
    "VLLM_API_KEY",
    rejects_early=True,
    inflight=32,
    extensions=OpenAIExtensions(
        priority="low_first",
        request_id=True,
        cache_salt=True,
        reasoning_field="reasoning",
        prompt_ids="kv_transfer_params",
    ),
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
        prompt_ids="input_ids",
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
LLAMACPP = Flavor(
    "llama.cpp",
    "http://127.0.0.1:8080/v1",
    "LLAMA_API_KEY",
    images=False,  # a server with a projector says so: see probe.py
    inflight=4,
    fixed_inflight=True,
    keep_alive=False,
    extensions=OpenAIExtensions(named_tool_choice=False),
    tested_with="its server in xllamacpp, in each CI run",
)
OLLAMA = Flavor(
    "ollama",
    "http://127.0.0.1:11434/v1",
    inflight=4,
    extensions=OpenAIExtensions(reasoning_field="reasoning"),
    tested_with="a local server with its wire format",
)
LMSTUDIO = Flavor(
    "lmstudio",
    "http://127.0.0.1:1234/v1",
    inflight=4,
    extensions=OpenAIExtensions(named_tool_choice=False),
    tested_with="a local server with its refusals",
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
