"""What a backend can do, found by asking it, and what would make it better."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Literal

import orjson

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from ..core.messages import Prompt, User
from ..core.protocols import Backend
from ..core.requests import Finished, Request, Sampling, TextDelta, Usage
from ..core.schema import closed_object
from .address import address_of, parse
from .connect import Notify, ProbedServer, connect, endpoints_of, probe_server
from .probe import probe_timeout

CheckState = Literal["ok", "off", "unknown", "failed"]
_PREFIX = "You keep the register of a small harbour, and you answer in one short sentence. " * 40
_SCHEMA = closed_object({"mood": {"type": "string", "enum": ["good", "bad"]}})
_ADVICE = {
    ("vllm", "tools"): "start vLLM with --enable-auto-tool-choice --tool-call-parser hermes (or your model's parser)",
    ("sglang", "tools"): "start SGLang with --tool-call-parser qwen25 (or your model's parser)",
    ("dynamo", "tools"): "start the worker with --dyn-tool-call-parser hermes (or your model's parser)",
    ("vllm", "cached"): "start vLLM with --enable-prompt-tokens-details to see what the prefix cache saves",
    ("sglang", "cached"): "start SGLang with --enable-cache-report to see what the prefix cache saves",
    ("vllm", "prefix"): "start vLLM without --no-enable-prefix-caching: agents share most of their prompts",
    ("sglang", "prefix"): "start SGLang without --disable-radix-cache: agents share most of their prompts",
    ("sglang", "sessions"): "--enable-session-radix-cache keeps a waiting agent's cache (if memory is short)",
    ("sglang", "priority"): "--enable-priority-scheduling lets agents that are nearly done go first",
    ("sglang", "metrics"): "--enable-metrics",
}


@dataclass(frozen=True, slots=True)
class DiagnosticCheck:
    name: str
    state: CheckState
    found: str
    advice: str = ""


async def examine(url: str, model: str | None, notify: Notify) -> AsyncIterator[DiagnosticCheck]:
    """One check after the other, as they are made. Sends a handful of short requests. Raises SpecError and
    BackendError only where the backend cannot be reached at all."""
    urls = endpoints_of(url)
    if len(urls) > 1:
        async for check in _examine_each(urls, model, notify):
            yield check
        return
    parsed = parse(urls[0])
    async with AsyncExitStack() as stack:
        reached: ProbedServer | None = None
        if parsed.scheme in ("local", "bedrock"):
            backend = await connect(urls[0], model, uses_tools=True, notify=notify)
        else:
            reached = await probe_server(address_of(parsed), model, tries_tools=False)
            backend = reached.backend
        stack.push_async_callback(backend.aclose)
        for check in _about(backend, reached):
            yield check
        ask = _Examiner(backend)
        answered = await ask.plain()
        yield answered
        if answered.state == "failed":
            return
        yield await ask.streamed()
        yield await ask.tools(reached)
        yield await ask.schema()
        for check in [*_sighted(reached), await ask.cached(reached), *await _busy(reached)]:
            yield check


async def _examine_each(urls: Sequence[str], model: str | None, notify: Notify) -> AsyncIterator[DiagnosticCheck]:
    """One endpoint after the other; one that is down keeps nobody from the next."""
    for url in urls:
        try:
            checks = [check async for check in examine(url, model, notify)]
        except (BackendError, SpecError) as error:
            yield DiagnosticCheck("endpoint", "failed", f"{url}: {error}")
            continue
        yield DiagnosticCheck("endpoint", "ok", url)
        for check in checks:
            yield check


class _Examiner:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._plain = Request(Prompt(""), (User("Say hello."),), backend.traits.model, Sampling(max_tokens=8))

    async def plain(self) -> DiagnosticCheck:
        started = time.monotonic()
        try:
            text, _, _ = await self._ask(self._plain)
        except BackendError as error:
            return DiagnosticCheck("answers", "failed", str(error))
        return DiagnosticCheck("answers", "ok", f"{text.strip()[:40]!r} in {time.monotonic() - started:.2f} s")

    async def streamed(self) -> DiagnosticCheck:
        try:
            _, _, pieces = await self._ask(replace(self._plain, stream=True))
        except BackendError as error:
            return DiagnosticCheck("streaming", "failed", str(error))
        return (
            DiagnosticCheck("streaming", "ok", f"{pieces} pieces")
            if pieces > 1
            else DiagnosticCheck("streaming", "off", "in one piece")
        )

    async def tools(self, reached: ProbedServer | None) -> DiagnosticCheck:
        if self._backend.traits.native_tools:
            return DiagnosticCheck("tool calls", "ok", "native")
        refused: BackendError | None = None
        if reached is not None and reached.tries_tools:
            try:
                refused = await reached.refusal_of_tools()
            except BackendError as error:
                refused = error
            if refused is None:
                return DiagnosticCheck("tool calls", "ok", "native")
        why = f": {refused}" if refused else ""
        advice = _ADVICE.get((reached.flavor.name, "tools"), "") if reached else ""
        return DiagnosticCheck("tool calls", "off", f"agents use one JSON action per turn instead{why}", advice)

    async def schema(self) -> DiagnosticCheck:
        traits = self._backend.traits
        if not traits.json_schema:
            return DiagnosticCheck(
                "JSON schema", "off", "not sent: the schema goes into the prompt, answers are repaired"
            )
        sampling = Sampling(max_tokens=64, temperature=0.0)
        asked = replace(self._plain, messages=(User("How is the weather?"),), sampling=sampling, answer_schema=_SCHEMA)
        try:
            text, _, _ = await self._ask(asked)
            kept = orjson.loads(text).get("mood") in ("good", "bad")
        except BackendError as error:
            return DiagnosticCheck("JSON schema", "failed", str(error))
        except (orjson.JSONDecodeError, AttributeError):
            kept = False
        beside = "" if traits.json_schema_with_tools else "; beside tools it goes into the prompt"
        return (
            DiagnosticCheck("JSON schema", "ok", f"kept{beside}")
            if kept
            else DiagnosticCheck("JSON schema", "off", "not kept")
        )

    async def cached(self, reached: ProbedServer | None) -> DiagnosticCheck:
        """The same long prefix twice: what the server says that it had already."""
        try:
            for question in ("Which ship came first?", "Which ship came last?"):
                asked = replace(self._plain, prompt=Prompt(_PREFIX), messages=(User(question),))
                _, usage, _ = await self._ask(asked)
        except BackendError as error:
            return DiagnosticCheck("cached tokens", "failed", str(error))
        if usage.cached:
            return DiagnosticCheck("cached tokens", "ok", f"{usage.cached} of {usage.input} on the second request")
        advice = "" if reached is None else _ADVICE.get((reached.flavor.name, "cached"), "")
        return DiagnosticCheck("cached tokens", "off", "none reported on the second request", advice)

    async def _ask(self, request: Request) -> tuple[str, Usage, int]:
        """The text, its usage, and in how many pieces it came."""
        text, pieces = "", 0
        async with probe_timeout(), self._backend.stream(request) as deltas:
            async for delta in deltas:
                match delta:
                    case TextDelta():
                        text += delta.text
                        pieces += 1
                    case Finished():
                        return text, delta.usage, pieces
                    case _:
                        pass
        raise BackendError(ErrorKind.CONNECTION, "The answer broke off before its end.")


def _about(backend: Backend, reached: ProbedServer | None) -> list[DiagnosticCheck]:
    traits = backend.traits
    server = traits.detected[0] if traits.detected else traits.name
    others = [entry.name for entry in reached.served if entry.name != traits.model][:5] if reached else []
    also = f" (also: {', '.join(others)})" if others else ""
    context = f"{traits.context_tokens:,} tokens" if traits.context_tokens else "not said"
    return [
        DiagnosticCheck("server", "ok", server),
        DiagnosticCheck("model", "ok", f"{traits.model}{also}"),
        DiagnosticCheck("context", "ok" if traits.context_tokens else "unknown", context),
    ]


def _sighted(reached: ProbedServer | None) -> list[DiagnosticCheck]:
    """What the server's other pages say. Nothing is listed that this kind of server does not have."""
    if reached is None:
        return []
    seen, name = reached.sighting, reached.flavor.name
    flags = (
        ("prefix cache", "prefix", seen.prefix_cache),
        ("priorities", "priority", seen.priority),
        ("sessions", "sessions", seen.sessions),
        ("metrics", "metrics", seen.metrics),
    )
    checks = [
        DiagnosticCheck(
            what, "ok" if flag else "off", "on" if flag else "off", "" if flag else _ADVICE.get((name, key), "")
        )
        for what, key, flag in flags
        if flag is not None
    ]
    if seen.kv_tokens:
        checks.append(DiagnosticCheck("KV cache", "ok", f"room for {seen.kv_tokens:,} tokens"))
    return checks


async def _busy(reached: ProbedServer | None) -> list[DiagnosticCheck]:
    load = await reached.backend.load() if reached is not None else None
    if load is None:
        return []
    held = "" if load.kv_usage is None else f", {load.kv_usage:.0%} of the KV cache held"
    return [DiagnosticCheck("load", "ok", f"{load.running} running, {load.waiting} waiting{held}")]
