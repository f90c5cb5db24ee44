"""Prints the compatibility table of docs/backends.md from the flavors: `python -m scripts.backend_table`."""

from batch_agent.backends.flavors import (
    ANTHROPIC,
    AZURE,
    BEDROCK,
    COMPATIBLE,
    DYNAMO,
    GEMINI,
    GROQ,
    LLAMACPP,
    LMSTUDIO,
    MISTRAL,
    OLLAMA,
    OPENAI,
    OPENROUTER,
    SGLANG,
    TOGETHER,
    VLLM,
    Flavor,
)

SERVICES = (AZURE, GEMINI, MISTRAL, GROQ, TOGETHER, OPENROUTER, OLLAMA, LMSTUDIO)
"""OpenAI-compatible: a table of their own has how they differ."""
FLAVORS = (VLLM, SGLANG, DYNAMO, OPENAI, ANTHROPIC, BEDROCK, LLAMACPP, COMPATIBLE)
_DIALECTS = {"openai": "OpenAI chat", "anthropic": "Anthropic messages", "bedrock": "Bedrock Converse"}
_TOOLS = {True: "native", False: "JSON actions", None: "native if the server accepts them (probed), else JSON actions"}
_PRIORITIES = {
    "": "no",
    "low_first": "`priority`, low first",
    "high_first": "`priority`, high first",
    "agent_hints": "`nvext.agent_hints`, high first",
}


def table() -> str:
    rows = [[title, *map(cell, FLAVORS)] for title, cell in _ROWS]
    lines = [f"| {' | '.join(row)} |" for row in [["", *(f"**{flavor.name}**" for flavor in FLAVORS)], *rows]]
    return "\n".join([lines[0], "|" + "---|" * (len(FLAVORS) + 1), *lines[1:]])


def services_table() -> str:
    lines = [f"| **{flavor.scheme}** | {' | '.join(cell(flavor) for _, cell in _COLUMNS)} |" for flavor in SERVICES]
    titles = " | ".join(title for title, _ in _COLUMNS)
    return "\n".join([f"|  | {titles} |", "|" + "---|" * (len(_COLUMNS) + 1), *lines])


def _fields(flavor: Flavor) -> str:
    extensions = flavor.extensions
    named = [f"`{extensions.max_tokens_field}`", f"`{extensions.seed_field}`" if extensions.seed_field else "no seed"]
    if not extensions.stream_options:
        named.append("no `stream_options`")
    if extensions.any_tool != "required":
        named.append(f"`tool_choice: {extensions.any_tool}`")
    if not extensions.named_tool_choice:
        named.append("no tool by name in `tool_choice`")
    if extensions.signed_calls:
        named.append("signatures of calls")
    return ", ".join(named)


def _limits(flavor: Flavor) -> str:
    if not flavor.rate_limit_headers:
        return "not read"
    return "tokens" if flavor.daily_requests else "requests, tokens"


def _schema(flavor: Flavor) -> str:
    if not flavor.json_schema:
        return "in the prompt"
    if flavor.schema_models:
        return (
            f"enforced by {' and '.join(flavor.schema_models)} models; in the prompt of others, and if there are tools"
        )
    strict = ", in its strict form" if flavor.extensions.strict_schema or flavor is ANTHROPIC else ""
    if flavor is BEDROCK:
        strict = ", for models that support it"
    return f"enforced{strict}" + ("" if flavor.json_schema_with_tools else "; in the prompt if there are tools")


def _cache(flavor: Flavor) -> str:
    if flavor.dialect == "anthropic":
        return "`cache_control`"
    if flavor.dialect == "bedrock":
        return "`cachePoint`, for models that support it"
    return "automatic, `prompt_cache_key`" if flavor.extensions.cache_key else "automatic"


def _session(flavor: Flavor) -> str:
    if flavor.extensions.session_field:
        return f"`{flavor.extensions.session_field}`, closed when the agent finishes (if the server keeps sessions)"
    if flavor.extensions.session_header:
        return f"header `{flavor.extensions.session_header}`"
    return "no"


_ROWS = (
    ("dialect", lambda flavor: _DIALECTS[flavor.dialect]),
    ("tool calls", lambda flavor: _TOOLS[flavor.native_tools]),
    ("JSON schema", _schema),
    ("prefix cache", _cache),
    ("shared prefix sent ahead", lambda flavor: "yes" if flavor.managed_cache else "not needed"),
    ("priority", lambda flavor: _PRIORITIES[flavor.extensions.priority]),
    ("agent session", _session),
    ("`cache_salt`", lambda flavor: "yes" if flavor.extensions.cache_salt else "no"),
    ("request ids", lambda flavor: "yes" if flavor.extensions.request_id else "no"),
    ("initial requests in flight", lambda flavor: "its slots" if flavor.fixed_inflight else str(flavor.inflight)),
    ("unsupported", lambda flavor: ", ".join(f"`{name}`" for name in flavor.ignores) or "-"),
    ("tested against", lambda flavor: flavor.tested_with),
)

_COLUMNS = (
    ("tool calls", lambda flavor: _TOOLS[flavor.native_tools]),
    ("JSON schema", _schema),
    ("fields", _fields),
    ("limits in headers", _limits),
    ("lanes", lambda flavor: ", ".join(flavor.lanes)),
    ("tested against", lambda flavor: flavor.tested_with),
)


if __name__ == "__main__":
    print(table())
    print()
    print(services_table())
