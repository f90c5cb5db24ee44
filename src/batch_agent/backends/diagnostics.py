"""Diagnostics of a backend: features that work, and server options that would help."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Literal

import orjson

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from ..core.messages import Prompt, User
from ..core.options.backend_settings import NamedBackend, settings_of
from ..core.protocols.backend import Backend, Traits
from ..core.requests import Finished, Request, Sampling, TextDelta, Usage
from ..core.schema import closed_object
from .address import BackendAddress, address_of, parse
from .connect import ProbedServer, connect, probe_server
from .endpoints.endpoint_identity import labelled
from .endpoints.endpoint_sources import list_endpoints
from .prices import PRICED_BACKENDS, known_price
from .probe import KvPlugin, ServerInfo, has_unstable_tier, probe_timeout
from .startup_wait import Notify

CheckState = Literal["ok", "off", "unknown", "warning", "failed"]
_PREFIX = "You keep the register of a small harbour, and you answer in one short sentence. " * 40
_SHOWN_KEY, _MIN_SHOWN_KEY = 4, 20
"""Characters of a key that are shown, and the length of a key of which some are shown."""
_SCHEMA = closed_object({"mood": {"type": "string", "enum": ["good", "bad"]}})
_ADVICE = {
    ("vllm", "tools"): "start vLLM with --enable-auto-tool-choice --tool-call-parser hermes (or your model's parser)",
    ("sglang", "tools"): "start SGLang with --tool-call-parser qwen25 (or your model's parser)",
    ("dynamo", "tools"): "start the worker with --dyn-tool-call-parser hermes (or your model's parser)",
    ("llama.cpp", "tools"): "start llama-server with --jinja, and a model whose chat template has tools",
    ("vllm", "cached"): "start vLLM with --enable-prompt-tokens-details to report what the prefix cache saves",
    ("sglang", "cached"): "start SGLang with --enable-cache-report to report what the prefix cache saves",
    ("vllm", "prefix"): "start vLLM without --no-enable-prefix-caching: agents share most of their prompts",
    ("vllm", "plugin"): "batch-agent-vllm keeps the contexts of agents that wait for tools (see the guide on vLLM)",
    ("sglang", "prefix"): "start SGLang without --disable-radix-cache: agents share most of their prompts",
    ("sglang", "sessions"): "--enable-session-radix-cache keeps the cache of a waiting agent (if memory is short)",
    ("sglang", "priority"): "--enable-priority-scheduling serves agents that are nearly done first",
    ("sglang", "metrics"): "--enable-metrics",
    (
        "dynamo",
        "routing",
    ): "start the frontend with --router-mode kv: it sends a turn to the worker that has its context",
    ("dynamo", "hints"): "--router-session-affinity-ttl-secs 60 keeps an agent's turns on one worker; "
    "--router-queue-threshold 0.5 (or a policy with a queue) serves urgent requests first; "
    "--router-track-output-blocks uses the expected output length; dynamo://...?sessions=end ends sessions",
    ("vllm", "priority"): "start vLLM with --scheduling-policy priority to serve agents that are nearly done first",
}


@dataclass(frozen=True, slots=True)
class DiagnosticCheck:
    """Result of one check: its state, what was found, and how to improve it."""

    name: str
    state: CheckState
    found: str
    advice: str = ""


async def diagnose(url: NamedBackend, model: str | None, notify: Notify) -> AsyncIterator[DiagnosticCheck]:
    """Yields checks as they complete. Sends a handful of short requests. Raises SpecError and BackendError only if the
    backend cannot be reached at all."""
    urls = await list_endpoints(url)
    if len(urls) > 1:
        async for check in _diagnose_each(urls, model, notify):
            yield check
        return
    settings = settings_of(urls[0])
    parsed = parse(settings.url)
    async with AsyncExitStack() as stack:
        probed: ProbedServer | None = None
        if parsed.scheme in ("local", "bedrock"):
            backend = await connect(urls[0], model, uses_tools=True, notify=notify)
        else:
            address = address_of(parsed, settings)
            if (key := _key(address)) is not None:
                yield key
            probed = await probe_server(address, model, uses_tools=False, notify=notify)
            backend = probed.backend
        stack.push_async_callback(backend.aclose)
        for check in _identity(backend, probed):
            yield check
        probe = _Prober(backend)
        answered = await probe.plain()
        yield answered
        if answered.state == "failed":
            return
        yield await probe.streaming()
        yield await probe.tools(probed)
        yield await probe.schema()
        for check in [*_settings(probed), await probe.cached(probed), *await _load(probed)]:
            yield check


async def _diagnose_each(
    urls: Sequence[NamedBackend], model: str | None, notify: Notify
) -> AsyncIterator[DiagnosticCheck]:
    """Checks one endpoint after the other. An endpoint that is down does not stop the others."""
    for label, url in labelled(urls).items():
        try:
            checks = [check async for check in diagnose(url, model, notify)]
        except (BackendError, SpecError) as error:
            yield DiagnosticCheck("endpoint", "failed", f"{label}: {error}")
            continue
        yield DiagnosticCheck("endpoint", "ok", label)
        for check in checks:
            yield check


class _Prober:
    """Checks that send requests."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._plain = Request(Prompt(""), (User("Say hello."),), backend.traits.model, Sampling(max_tokens=8))

    async def plain(self) -> DiagnosticCheck:
        started = time.monotonic()
        try:
            text, _, _ = await self._send(self._plain)
        except BackendError as error:
            return DiagnosticCheck("answers", "failed", str(error))
        return DiagnosticCheck("answers", "ok", f"{text.strip()[:40]!r} in {time.monotonic() - started:.2f} s")

    async def streaming(self) -> DiagnosticCheck:
        try:
            _, _, chunks = await self._send(replace(self._plain, stream=True))
        except BackendError as error:
            return DiagnosticCheck("streaming", "failed", str(error))
        return (
            DiagnosticCheck("streaming", "ok", f"{chunks} chunks")
            if chunks > 1
            else DiagnosticCheck("streaming", "off", "in one chunk")
        )

    async def tools(self, probed: ProbedServer | None) -> DiagnosticCheck:
        if self._backend.traits.native_tools:
            return DiagnosticCheck("tool calls", "ok", "native")
        rejection: BackendError | None = None
        if probed is not None and probed.needs_tool_trial:
            try:
                rejection = await probed.tool_refusal()
            except BackendError as error:
                rejection = error
            if rejection is None:
                return DiagnosticCheck("tool calls", "ok", "native")
        reason = f": {rejection}" if rejection else ""
        advice = _ADVICE.get((probed.flavor.name, "tools"), "") if probed else ""
        return DiagnosticCheck("tool calls", "off", f"agents use one JSON action per turn instead{reason}", advice)

    async def schema(self) -> DiagnosticCheck:
        traits = self._backend.traits
        if not traits.json_schema:
            return DiagnosticCheck(
                "JSON schema", "off", "not sent: the schema is part of the prompt, and answers are repaired"
            )
        sampling = Sampling(max_tokens=64, temperature=0.0)
        request = replace(
            self._plain, messages=(User("How is the weather?"),), sampling=sampling, answer_schema=_SCHEMA
        )
        try:
            text, _, _ = await self._send(request)
            is_valid = orjson.loads(text).get("mood") in ("good", "bad")
        except BackendError as error:
            return DiagnosticCheck("JSON schema", "failed", str(error))
        except (orjson.JSONDecodeError, AttributeError):
            is_valid = False
        with_tools = "" if traits.json_schema_with_tools else "; with tools it is part of the prompt"
        return (
            DiagnosticCheck("JSON schema", "ok", f"enforced{with_tools}")
            if is_valid
            else DiagnosticCheck("JSON schema", "off", "not enforced")
        )

    async def cached(self, probed: ProbedServer | None) -> DiagnosticCheck:
        """Sends the same long prefix twice, and checks how much of it the server reports as cached."""
        try:
            for question in ("Which ship came first?", "Which ship came last?"):
                request = replace(self._plain, prompt=Prompt(_PREFIX), messages=(User(question),))
                _, usage, _ = await self._send(request)
        except BackendError as error:
            return DiagnosticCheck("cached tokens", "failed", str(error))
        if usage.cached:
            return DiagnosticCheck("cached tokens", "ok", f"{usage.cached} of {usage.input} on the second request")
        advice = "" if probed is None else _ADVICE.get((probed.flavor.name, "cached"), "")
        return DiagnosticCheck("cached tokens", "off", "none reported on the second request", advice)

    async def _send(self, request: Request) -> tuple[str, Usage, int]:
        """The text, its usage, and the number of chunks it arrived in."""
        text, chunks = "", 0
        async with probe_timeout(), self._backend.stream(request) as deltas:
            async for delta in deltas:
                match delta:
                    case TextDelta():
                        text += delta.text
                        chunks += 1
                    case Finished():
                        return text, delta.usage, chunks
                    case _:
                        pass
        raise BackendError(
            ErrorKind.CONNECTION, "The response was truncated: connection closed before the final chunk."
        )


def _identity(backend: Backend, probed: ProbedServer | None) -> list[DiagnosticCheck]:
    traits = backend.traits
    server = traits.detected[0] if traits.detected else traits.name
    others = [entry.name for entry in probed.models if entry.name != traits.model][:5] if probed else []
    other_models = f" (also: {', '.join(others)})" if others else ""
    context = f"{traits.context_tokens:,} tokens" if traits.context_tokens else "not reported"
    return [
        DiagnosticCheck("server", "ok", server),
        DiagnosticCheck("model", "ok", f"{traits.model}{other_models}"),
        DiagnosticCheck("context", "ok" if traits.context_tokens else "unknown", context),
        *_price(traits),
    ]


def _key(address: BackendAddress) -> DiagnosticCheck | None:
    """Where the key comes from, and its last characters; None if no key is sent and none is needed."""
    if not (source := address.key_source):
        return None
    key = address.key or ""
    shown = f", ***{key[-_SHOWN_KEY:]}" if len(key) >= _MIN_SHOWN_KEY else ""
    return DiagnosticCheck("key", "ok", f"from {source}{shown}")


def _price(traits: Traits) -> list[DiagnosticCheck]:
    """The price of a hosted model, and the date of the table that it is from."""
    if traits.name not in PRICED_BACKENDS:
        return []
    if (price := known_price(traits.model, traits.name, {})) is None:
        return [
            DiagnosticCheck("price", "unknown", "not in the table of prices", "Pass prices= for max_usd and costs.")
        ]
    fresh, cached, output = (f"${number:g}" for number in price.numbers[:3])
    found = f"{fresh} input, {cached} cached, {output} output per million tokens ({price.source})"
    return [DiagnosticCheck("price", "ok", found)]


def _settings(probed: ProbedServer | None) -> list[DiagnosticCheck]:
    """Settings that the server reports. Settings that this kind of server does not have are not listed."""
    if probed is None:
        return []
    info, name = probed.info, probed.flavor.name
    flags = (
        ("prefix cache", "prefix", info.prefix_cache),
        ("priorities", "priority", info.priority),
        ("sessions", "sessions", info.sessions),
        ("metrics", "metrics", info.metrics),
        ("KV routing", "routing", info.kv_router),
    )
    checks = [
        DiagnosticCheck(
            label, "ok" if flag else "off", "on" if flag else "off", "" if flag else _ADVICE.get((name, key), "")
        )
        for label, key, flag in flags
        if flag is not None
    ]
    if info.kv_tokens:
        checks.append(DiagnosticCheck("KV cache", "ok", f"capacity of {info.kv_tokens:,} tokens"))
    if name == "vllm" and info.metrics:
        checks.append(_plugin(info.plugin))
    return [*checks, *_tier(info, name), *_hints(info, name)]


def _tier(info: ServerInfo, name: str) -> list[DiagnosticCheck]:
    """The slower tier of the KV cache, if the server has one."""
    if not info.host_tier:
        return []
    if has_unstable_tier(info, name):
        return [
            DiagnosticCheck(
                "second tier",
                "warning",
                f"{info.host_tier}: the engine of vLLM 0.26 dies with it when a request is aborted before its prompt "
                "is computed (vllm#49118)",
                "use a later version, or start vLLM without --kv-offloading-size. Until then, requests are aborted "
                "only after their first token; other clients, a second Ctrl-C and kill -9 can still end the engine: "
                "keep a checkpoint (checkpoint_dir)",
            )
        ]
    limited = "" if info.kv_retained_tokens else "; its size in tokens is not reported, so residency is not limited"
    return [DiagnosticCheck("second tier", "ok", f"{info.host_tier}{limited}")]


def _hints(info: ServerInfo, name: str) -> list[DiagnosticCheck]:
    """Hints about agents that are sent, and whether the server acts on them, where `_settings` does not say it."""
    if name == "vllm" and info.priority is None:
        found = "sent; vLLM does not report whether it serves by priority"
        return [DiagnosticCheck("priorities", "unknown", found, _ADVICE["vllm", "priority"])]
    if name == "dynamo":
        found = "priority, output length and session are sent; the frontend does not report whether it acts on them"
        return [DiagnosticCheck("agent hints", "unknown", found, _ADVICE["dynamo", "hints"])]
    if not info.priority_eviction:
        return []
    if info.low_priority_first:
        found = "by priority, and the least urgent is kept: lower values are served first, but higher ones are kept"
        advice = "start SGLang without --schedule-low-priority-values-first or without --radix-eviction-policy priority"
        return [DiagnosticCheck("eviction", "warning", found, advice)]
    if info.sessions:
        return [DiagnosticCheck("eviction", "ok", "agents that have ended first, then by priority")]
    found = "by priority: agents outlive requests without one, but the server is not told when an agent has ended"
    return [DiagnosticCheck("eviction", "ok", found, _ADVICE["sglang", "sessions"])]


def _plugin(plugin: KvPlugin | None) -> DiagnosticCheck:
    """Check of the plugin batch-agent-vllm. Only /metrics shows whether it is installed."""
    if plugin is None:
        return DiagnosticCheck("KV plugin", "off", "not active", _ADVICE["vllm", "plugin"])
    found = [f"batch-agent-vllm {plugin.version}"]
    if plugin.pins is None:
        found.append("too busy to say more")
    elif plugin.pins:
        found.append("pins contexts of waiting agents")
    if plugin.policy:
        found.append(f"host tier by {plugin.policy}")
    if plugin.host_tokens:
        beside = " beside the device" if plugin.is_exclusive else ""
        found.append(f"host tier of {plugin.host_tokens:,} tokens{beside}")
    return DiagnosticCheck("KV plugin", "ok", ", ".join(found))


async def _load(probed: ProbedServer | None) -> list[DiagnosticCheck]:
    load = await probed.backend.load() if probed is not None else None
    if load is None:
        return []
    kv_usage = "" if load.kv_usage is None else f", {load.kv_usage:.0%} of the KV cache in use"
    return [DiagnosticCheck("load", "ok", f"{load.running} running, {load.waiting} waiting{kv_usage}")]
