"""Connection to the backend that a URL names: probes the server, and chooses flavor, dialect and traits."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from yarl import URL

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from ..core.options.backend_settings import SOURCE_SCHEMES, BackendSettings, NamedBackend, NamedBackends, settings_of
from ..core.protocols.backend import Backend, Traits
from ..core.requests import ContextHint, RequestObserver, Usage
from ..lazy_imports import lazy_modules
from .address import BackendAddress, address_of, parse, with_version
from .dialects.dialect import Dialect
from .dialects.openai.context_hints import COMPLETIONS_PATH, hint_request
from .dialects.openai.encoder import PATH, OpenAIChat
from .endpoints.endpoint_identity import check_distinct, labelled
from .flavors import ANTHROPIC, BY_OWNER, COMPATIBLE, LLAMACPP, Flavor, OpenAIExtensions, enforces_schema, takes_images
from .http.client import ServerClient
from .http.transport_selection import open_transport
from .http_backend import HttpBackend
from .load_metrics import load_reader_for
from .probe import (
    ServedModel,
    ServerInfo,
    admin_url,
    has_unstable_tier,
    inspect_server,
    list_models,
    probe_tools,
    select_model,
)
from .session_cleanup import SessionCloser, close_session, drop_context, final_request
from .startup_wait import Notify
from .token_counter import prompt_renderer_for, token_counter_for

with lazy_modules(globals()):
    from . import bedrock, embedded
    from .dialects.anthropic import encoder as anthropic_encoder
    from .endpoints import endpoint_pool, endpoint_watcher
    from .http import late_abort

if TYPE_CHECKING:
    from .endpoints.endpoint_pool import EndpointPool
    from .http.late_abort import LateAborts


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """Options of the request that finds out whether a server accepts tools."""

    with_budget: Callable[[Backend], Backend] | None = None
    """Wraps the backend so that the trial is charged to the run's budget."""
    assume_tools: bool = True
    """Assumed where the budget does not allow the trial."""
    on_usage: Callable[[Usage], None] | None = None
    """Called with the usage of the trial."""
    has_peers: bool = False
    """The server is one of several endpoints. If it also rejects requests without tools, its error is raised, and the
    other endpoints are used."""


_HINT_TIMEOUT = 5.0


async def connect(
    url: NamedBackends,
    model: str | None,
    *,
    uses_tools: bool,
    notify: Notify,
    trial: TrialRequest | None = None,
    observe: RequestObserver | None = None,
) -> Backend:
    """Opens the backend that `url` names. Several endpoints, or those of a source, form an endpoint pool. Nothing is
    generated, except for one token where only a trial shows whether the server accepts tools. `observe` is called with
    each exchange. Raises SpecError for an invalid URL, and BackendError for a server that cannot be used."""
    given = [url] if isinstance(url, str | BackendSettings) else list(url)
    for each in given:
        if (each if isinstance(each, str) else each.url).startswith(SOURCE_SCHEMES):
            return await _open_watched_pool(given, model, uses_tools, notify, trial, observe)
    urls = given if len(given) == 1 else check_distinct(given)
    if len(urls) == 1:
        return await _connect_one(urls[0], model, uses_tools=uses_tools, notify=notify, trial=trial, observe=observe)
    return await open_endpoint_pool(urls, model, uses_tools=uses_tools, notify=notify, trial=trial, observe=observe)


async def _open_watched_pool(
    given: Sequence[NamedBackend],
    model: str | None,
    uses_tools: bool,
    notify: Notify,
    trial: TrialRequest | None,
    observe: RequestObserver | None,
) -> "EndpointPool":
    async def open_one(endpoint: NamedBackend) -> Backend:
        one_trial = replace(trial or TrialRequest(), has_peers=True)
        return await _connect_one(
            endpoint, model, uses_tools=uses_tools, notify=notify, trial=one_trial, observe=observe
        )

    return await endpoint_watcher.open_watched_pool(given, open_one, notify)


async def open_endpoint_pool(
    endpoints: Sequence[NamedBackend],
    model: str | None,
    *,
    uses_tools: bool,
    notify: Notify,
    timeout: float | None = None,
    trial: TrialRequest | None = None,
    observe: RequestObserver | None = None,
) -> "EndpointPool":
    """`timeout`: seconds in which each endpoint must respond to the probe. Raises as `connect` does."""

    named = labelled(endpoints)

    async def open_one(label: str) -> Backend:
        try:
            async with asyncio.timeout(timeout):
                one_trial = replace(trial or TrialRequest(), has_peers=len(named) > 1)
                return await _connect_one(
                    named[label], model, uses_tools=uses_tools, notify=notify, trial=one_trial, observe=observe
                )
        except TimeoutError as error:
            raise BackendError(ErrorKind.UNAVAILABLE, f"No response within {timeout:g} s.") from error

    return await endpoint_pool.EndpointPool.open(list(named), open_one, notify)


def check_has_only_url(settings: BackendSettings) -> None:
    """Raises SpecError for settings of a backend that is not reached with a key and headers."""
    for name in ("api_key", "headers", "organization", "project", "api_version"):
        if getattr(settings, name):
            scheme = settings.url.partition("://")[0]
            raise SpecError(f"Backend: {scheme}:// has no {name}.")


async def check_model(url: NamedBackend, model: str | None, timeout: float) -> None:
    """Raises SpecError if a server lists its models, and this one is not among them. A server that cannot be asked
    within `timeout` seconds may have it."""
    settings = settings_of(url)
    parsed = parse(settings.url)
    if parsed.scheme in ("local", "bedrock"):
        return
    address = address_of(parsed, settings)
    server = ServerClient(open_transport(address.root, address.headers()), address.root, key_advice=address.key_advice)
    try:
        with suppress(BackendError, TimeoutError):
            async with asyncio.timeout(timeout):
                select_model(await _list_models(server, address, model), model, address.root)
    finally:
        await server.aclose()


async def _connect_one(
    endpoint: NamedBackend,
    model: str | None,
    *,
    uses_tools: bool,
    notify: Notify,
    trial: TrialRequest | None,
    observe: RequestObserver | None,
) -> Backend:
    settings = settings_of(endpoint)
    parsed = parse(settings.url)
    if parsed.scheme in ("local", "bedrock"):
        check_has_only_url(settings)
    if parsed.scheme == "local":
        return await _open_local(parsed, model, notify, observe)
    if parsed.scheme == "bedrock":
        return await bedrock.open_bedrock(parsed, model, observe)
    address = address_of(parsed, settings)
    said = None if trial is not None and trial.has_peers else notify  # a pool says which of its endpoints it waits for
    probed = await probe_server(address, model, uses_tools=uses_tools, trial=trial, observe=observe, notify=said)
    return probed.backend


@dataclass(frozen=True, slots=True)
class ProbedServer:
    """Server that responded to the probe, and what the probe found."""

    backend: HttpBackend
    flavor: Flavor
    models: list[ServedModel]
    info: ServerInfo

    @property
    def needs_tool_trial(self) -> bool:
        """Whether only a trial shows if the server accepts tools."""
        return self.flavor.native_tools is None and self.info.tool_parser is not False

    async def tool_refusal(
        self, trial: TrialRequest | None = None, notify: Notify | None = None
    ) -> BackendError | None:
        """The server's rejection of a request with a tool; None if it accepts it. Raises BackendError for other
        errors."""
        model, rejects_early = self.backend.traits.model, self.flavor.rejects_early
        trial = trial or TrialRequest()
        backend = self.backend if trial.with_budget is None else trial.with_budget(self.backend)
        refusal = await probe_tools(backend, model, rejects_early=rejects_early, on_usage=trial.on_usage, notify=notify)
        if refusal is not None and trial.has_peers:
            plain_refusal = await probe_tools(
                backend, model, rejects_early=rejects_early, on_usage=trial.on_usage, tools=()
            )
            if plain_refusal is not None:
                raise plain_refusal
        return refusal

    async def supports_tools(self, trial: TrialRequest | None, notify: Notify | None) -> bool:
        """Whether the server accepts tools, by a trial. Raises BackendError for errors other than a rejection."""
        try:
            return await self.tool_refusal(trial, notify) is None
        except BackendError as error:
            if trial is None or trial.with_budget is None or error.kind is not ErrorKind.BUDGET:
                raise
            return trial.assume_tools  # nothing can be sent: the run only replays what is in its checkpoint


async def probe_server(
    address: BackendAddress,
    model: str | None,
    *,
    uses_tools: bool,
    trial: TrialRequest | None = None,
    observe: RequestObserver | None = None,
    notify: Notify | None = None,
) -> ProbedServer:
    """Connects to one server and probes it. Raises as `connect` does."""
    headers = address.headers()
    server = ServerClient(open_transport(address.root, headers), address.root, key_advice=address.key_advice)
    try:
        models = await _list_models(server, address, model, notify)
        flavor = detect_flavor(address, models)
        chosen = select_model(models, model, address.root)
        info = await inspect_server(server, flavor)
        if info.context_tokens is not None:
            chosen = replace(chosen, context_tokens=info.context_tokens)
        if not flavor.keep_alive:
            await server.aclose()
            transport = open_transport(address.root, headers, keep_alive=False)
            server = ServerClient(transport, address.root, key_advice=address.key_advice)
        backend = http_backend(server, address, flavor, chosen, info, observe)
        probed = ProbedServer(backend, flavor, models, info)
        if uses_tools and probed.needs_tool_trial and await probed.supports_tools(trial, notify):
            backend.traits = replace(backend.traits, native_tools=True)
        return probed
    except BaseException:
        await server.aclose()
        raise


async def _list_models(
    server: ServerClient, address: BackendAddress, model: str | None, notify: Notify | None = None
) -> list[ServedModel]:
    """The models of a server, by the names that requests have. Raises BackendError, and SpecError for a service that
    does not list them."""
    flavor = address.flavor_or_default
    if not flavor.lists_models:
        if model is None:
            raise SpecError(f"{flavor.scheme}:// needs model=...: the name of the deployment.")
        return []
    models = await list_models(server, may_be_missing=model is not None, notify=notify)
    if not flavor.model_prefix or (model is not None and model.startswith(flavor.model_prefix)):
        return models
    return [replace(each, name=each.name.removeprefix(flavor.model_prefix)) for each in models]


def http_backend(
    server: ServerClient,
    address: BackendAddress,
    flavor: Flavor,
    model: ServedModel,
    info: ServerInfo,
    observe: RequestObserver | None = None,
) -> HttpBackend:
    """The backend of a server, from what is known about it."""
    if (header := address.settings.session_header) is not None:
        flavor = with_session_header(flavor, header)
    session_closer, dialect = _session_closer(server, flavor, info, address, model.name), _dialect(flavor, info, model)
    return HttpBackend(
        server,
        dialect,
        _traits(flavor, model, info, has_agent_sessions=session_closer is not None),
        session_closer,
        read_load=load_reader_for(server, flavor),
        count_tokens=token_counter_for(server, flavor, model.name),
        observe=observe,
        send_hint=_hint_sender(server, info, model.name),
        daily_requests=flavor.daily_requests,
        render_prompt=prompt_renderer_for(server, dialect) if flavor.extensions.prompt_ids else None,
        late_aborts=_late_aborts(flavor, info),
    )


def with_session_header(flavor: Flavor, header: str) -> Flavor:
    """The flavor of a server behind a router that keeps the requests of a session together. Raises SpecError."""
    if flavor.dialect != "openai":
        raise SpecError(f"Backend: session_header needs an OpenAI-compatible server; {flavor.scheme}:// is not one.")
    return replace(flavor, extensions=replace(flavor.extensions, session_header=header))


def _late_aborts(flavor: Flavor, info: ServerInfo) -> "LateAborts | None":
    if not has_unstable_tier(info, flavor.name):
        return None
    return late_abort.LateAborts()


def detect_flavor(address: BackendAddress, models: list[ServedModel]) -> Flavor:
    """The flavor that the URL names, or that the server reports."""
    owner = BY_OWNER.get(models[0].owner) if models else None
    flavor = address.flavor
    if flavor is None:
        return owner or COMPATIBLE
    if flavor is ANTHROPIC and not address.is_default:
        # Another server with Anthropic's dialect keeps its own abilities.
        host = owner if owner is not None and owner is not ANTHROPIC else COMPATIBLE
        return replace(host, dialect=ANTHROPIC.dialect, ignores=ANTHROPIC.ignores, rejects_early=False)
    return flavor


def _dialect(flavor: Flavor, info: ServerInfo, model: ServedModel) -> Dialect:
    if flavor.dialect == "anthropic":
        return anthropic_encoder.AnthropicMessages(
            max_output_tokens=model.max_output_tokens, strict_schema=flavor is ANTHROPIC
        )
    return OpenAIChat(_active_extensions(flavor.extensions, info))


def _active_extensions(extensions: OpenAIExtensions, info: ServerInfo) -> OpenAIExtensions:
    """The extensions that the server acts on, as far as it says which."""
    if extensions.session_field and not info.sessions:
        extensions = replace(extensions, session_field="")
    if info.plugin is not None:
        extensions = replace(extensions, context_hints=True)
    if info.priority is False and (info.refuses_priority or not info.priority_eviction):
        return replace(extensions, priority="")
    if info.priority and info.low_priority_first:  # eviction still keeps the high values: it is of no use then
        return replace(extensions, priority="low_first")
    # Where sessions are kept they come first, and a closed one is evicted before all open ones.
    return replace(extensions, evicts_by_priority=bool(info.priority_eviction) and not info.sessions)


def _session_closer(
    server: ServerClient, flavor: Flavor, info: ServerInfo, address: BackendAddress, model: str
) -> SessionCloser | None:
    if flavor.dialect != "openai":
        return None
    if flavor.extensions.session_field and info.sessions:
        return SessionCloser(server.post_or_none, close_session(admin_url(server.root, "/close_session")))
    if info.plugin is not None:
        drop = drop_context(server.url(COMPLETIONS_PATH), model)
        return SessionCloser(server.post_or_none, drop, last_request_closes=True)
    if address.ends_sessions:
        return SessionCloser(server.post_or_none, final_request(server.url(PATH), model))
    return None


def _hint_sender(
    server: ServerClient, info: ServerInfo, model: str
) -> Callable[[ContextHint], Awaitable[object]] | None:
    if info.plugin is None:
        return None
    url = server.url(COMPLETIONS_PATH)
    return lambda hint: server.post_or_none(url, hint_request(model, hint), _HINT_TIMEOUT)


def _traits(flavor: Flavor, model: ServedModel, info: ServerInfo, *, has_agent_sessions: bool = False) -> Traits:
    return Traits(
        name=flavor.name,
        model=model.name,
        native_tools=bool(flavor.native_tools),
        json_schema=enforces_schema(flavor, model.name),
        json_schema_with_tools=flavor.json_schema_with_tools,
        inflight=info.slots or flavor.inflight,
        fixed_inflight=flavor.fixed_inflight,
        context_tokens=model.context_tokens,
        # Without a prefix cache nothing is kept between turns, so residency is not guarded.
        kv_tokens=info.kv_retained_tokens if info.prefix_cache is not False else None,
        kv_running_tokens=info.kv_tokens,
        strict_schema=flavor.extensions.strict_schema or flavor is ANTHROPIC,
        has_agent_sessions=has_agent_sessions,
        takes_hints=info.plugin is not None and flavor.dialect == "openai",
        reports_rate_limits=flavor.rate_limit_headers,
        managed_cache=flavor.managed_cache,
        lanes=flavor.lanes,
        token_ids=bool(flavor.extensions.prompt_ids) and flavor.dialect == "openai",
        unsupported_sampling=flavor.ignores,
        images=info.images if info.images is not None else takes_images(flavor, model.name),
        max_image_bytes=flavor.max_image_bytes,
        max_image_side=flavor.max_image_side,
        image_tokens=flavor.image_tokens,
        detected=tuple(_describe(flavor, model, info)),
    )


def _describe(flavor: Flavor, model: ServedModel, info: ServerInfo) -> list[str]:
    """What was detected, for the report of the run."""
    seen = [f"{flavor.name} {info.version}" if info.version else flavor.name]
    if model.context_tokens:
        seen.append(f"context window of {model.context_tokens:,} tokens")
    if info.prefix_cache is not None:
        seen.append(f"prefix cache {'on' if info.prefix_cache else 'OFF'}")
    if info.kv_tokens:
        seen.append(f"KV cache of {info.kv_tokens:,} tokens")
    if info.sessions:
        seen.append("sessions")
    if info.priority:
        seen.append("priorities")
    if info.plugin:
        seen.append(f"batch-agent-vllm {info.plugin.version}")
    if info.priority_eviction:
        seen.append("eviction by priority")
    if info.host_tier:
        unstable = (
            ", which is UNSTABLE in this version (batch-agent doctor)" if has_unstable_tier(info, flavor.name) else ""
        )
        seen.append(f"second tier: {info.host_tier}{unstable}")
    return seen


def parse_local(url: URL) -> tuple[Path | None, int | None]:
    """Path of the weights and number of slots of a local:// URL; None for the defaults. Raises SpecError."""
    if url.host:
        raise SpecError(
            f"backend={str(url)!r}: use an absolute path after three slashes, as in local:///models/a.gguf."
        )
    if unknown_options := sorted(set(url.query) - {"slots"}):
        raise SpecError(f"backend={str(url)!r}: unknown option {unknown_options[0]!r}; local:// accepts only slots.")
    slots = url.query.get("slots")
    if slots is not None and (not slots.isdecimal() or int(slots) < 1):
        raise SpecError(f"backend={str(url)!r}: slots must be an integer >= 1.")
    return Path(url.path) if url.path not in ("", "/") else None, int(slots) if slots else None


async def _open_local(url: URL, model: str | None, notify: Notify, observe: RequestObserver | None = None) -> Backend:
    path, slots = parse_local(url)
    notify("Starting the embedded model ...")
    try:
        local = await embedded.LocalServer.start(path, slots=slots, notify=notify)
    except embedded.EmbeddedModelError as error:
        raise BackendError(ErrorKind.NOT_FOUND, str(error)) from error
    try:
        served = ServedModel(local.model_name, context_tokens=local.context_tokens)
        return local_backend(URL(local.url), path, local.slots, served, model, local.aclose, observe)
    except BaseException:
        await local.aclose()
        raise


def local_backend(
    url: URL,
    path: Path | None,
    slots: int,
    served: ServedModel,
    model: str | None,
    on_close: Callable[[], Awaitable[None]] | None = None,
    observe: RequestObserver | None = None,
) -> HttpBackend:
    """The backend of an embedded model at `url`. `model`: the name that the user gave. Raises SpecError."""
    if model is not None and model != served.name:
        shown = "local://" if path is None else f"local://{path}"
        raise SpecError(f"model={model!r} is not served: {shown} serves {served.name!r}. Omit model.")
    flavor, root = replace(LLAMACPP, name="local", native_tools=False, inflight=slots), with_version(url)
    server = ServerClient(open_transport(root, {}, keep_alive=flavor.keep_alive), root)
    return HttpBackend(
        server,
        OpenAIChat(adapt_schema=embedded.add_schema_hints if path is None else None),
        _traits(flavor, served, ServerInfo()),
        on_close=on_close,
        count_tokens=token_counter_for(server, flavor, served.name),
        observe=observe,
    )
