"""Connection to the backend that a URL names: probes the server, and chooses flavor, dialect and traits."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from yarl import URL

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from ..core.options.backend_settings import BackendSettings, NamedBackend, NamedBackends, settings_of
from ..core.protocols import Backend, Traits
from ..core.requests import ContextHint, RequestObserver, Usage
from .address import BackendAddress, address_of, parse, with_version
from .dialects.dialect import Dialect
from .dialects.openai.context_hints import COMPLETIONS_PATH, hint_request
from .dialects.openai.encoder import PATH, OpenAIChat
from .flavors import ANTHROPIC, BY_OWNER, COMPATIBLE, LLAMACPP, Flavor, OpenAIExtensions, enforces_schema, takes_images
from .hostfile import Endpoint, parse_hostfile
from .http.client import ServerClient, display_url
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
from .token_counter import prompt_renderer_for, token_counter_for

if TYPE_CHECKING:
    from .endpoint_pool import EndpointPool
    from .http.late_abort import LateAborts

Notify = Callable[[str], None]


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


HOSTFILE_SCHEME = "hostfile://"
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
    """Opens the backend that `url` names. Several endpoints, or those of a hostfile, form an endpoint pool. Nothing is
    generated, except for one token where only a trial shows whether the server accepts tools. `observe` is called with
    each exchange. Raises SpecError for an invalid URL, and BackendError for a server that cannot be used."""
    urls = endpoints_of(url)
    if len(urls) == 1:
        return await _connect_one(urls[0], model, uses_tools=uses_tools, notify=notify, trial=trial, observe=observe)
    return await open_endpoint_pool(urls, model, uses_tools=uses_tools, notify=notify, trial=trial, observe=observe)


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

    from .endpoint_pool import EndpointPool

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

    return await EndpointPool.open(list(named), open_one, notify)


def endpoints_of(url: NamedBackends) -> list[NamedBackend]:
    """All endpoints, with those of hostfiles. Raises SpecError, also for an endpoint that is listed twice with the same
    key."""
    given = [url] if isinstance(url, str | BackendSettings) else list(url)
    found: dict[object, NamedBackend] = {}
    for each in given:
        endpoints = [each]
        settings = settings_of(each)
        if settings.url.startswith(HOSTFILE_SCHEME):
            hosts = parse_hostfile(settings.url.removeprefix(HOSTFILE_SCHEME))
            endpoints = [_of_hostfile(each, backend_url(host)) for host in hosts]
        for endpoint in endpoints:
            server = server_of(endpoint), settings.api_key, settings.organization, settings.project
            if server in found:
                raise SpecError(f"{display_url(URL(settings_of(endpoint).url))} is listed twice among the endpoints.")
            found[server] = endpoint
    return list(found.values())


def _of_hostfile(given: NamedBackend, url: str) -> NamedBackend:
    """An endpoint of a hostfile, with the settings that were given with it."""
    return url if isinstance(given, str) else replace(given, url=url)


def labelled(endpoints: Sequence[NamedBackend]) -> dict[str, NamedBackend]:
    """The endpoints by a name that is theirs alone. An endpoint that several keys use has a number behind its URL."""
    found: dict[str, NamedBackend] = {}
    for each in endpoints:
        url = settings_of(each).label
        same = sum(settings_of(other).label == url for other in found.values())
        found[f"{url} (key {same + 1})" if same else url] = each
    return found


def server_of(endpoint: NamedBackend) -> str:
    """The same string for all ways to write the URL of one server."""
    settings = settings_of(endpoint)
    parsed = parse(settings.url)
    if parsed.scheme in ("local", "bedrock"):
        return settings.url
    return str(address_of(parsed, settings).root)


def check_has_only_url(settings: BackendSettings) -> None:
    """Raises SpecError for settings of a backend that is not reached with a key and headers."""
    for name in ("api_key", "headers", "organization", "project", "api_version"):
        if getattr(settings, name):
            scheme = settings.url.partition("://")[0]
            raise SpecError(f"Backend: {scheme}:// has no {name}.")


def backend_url(endpoint: Endpoint) -> str:
    """The URL of an endpoint. An address without a path is assumed to be a vLLM server; other URLs are probed."""
    is_address = endpoint.scheme == "http" and not endpoint.base
    return endpoint.url.replace("http://", "vllm://", 1) if is_address else endpoint.url


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
        from .bedrock import open_bedrock  # imported when it is needed, as every dialect

        return await open_bedrock(parsed, model, observe)
    address = address_of(parsed, settings)
    return (await probe_server(address, model, uses_tools=uses_tools, trial=trial, observe=observe)).backend


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

    async def tool_refusal(self, trial: TrialRequest | None = None) -> BackendError | None:
        """The server's rejection of a request with a tool; None if it accepts it. Raises BackendError for other
        errors."""
        model, rejects_early = self.backend.traits.model, self.flavor.rejects_early
        trial = trial or TrialRequest()
        backend = self.backend if trial.with_budget is None else trial.with_budget(self.backend)
        refusal = await probe_tools(backend, model, rejects_early=rejects_early, on_usage=trial.on_usage)
        if refusal is not None and trial.has_peers:
            plain_refusal = await probe_tools(
                backend, model, rejects_early=rejects_early, on_usage=trial.on_usage, tools=()
            )
            if plain_refusal is not None:
                raise plain_refusal
        return refusal

    async def supports_tools(self, trial: TrialRequest | None) -> bool:
        """Whether the server accepts tools, by a trial. Raises BackendError for errors other than a rejection."""
        try:
            return await self.tool_refusal(trial) is None
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
) -> ProbedServer:
    """Connects to one server and probes it. Raises as `connect` does."""
    headers = address.headers()
    server = ServerClient(open_transport(address.root, headers), address.root, key_advice=address.key_advice)
    try:
        models = await _list_models(server, address, model)
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
        if uses_tools and probed.needs_tool_trial and await probed.supports_tools(trial):
            backend.traits = replace(backend.traits, native_tools=True)
        return probed
    except BaseException:
        await server.aclose()
        raise


async def _list_models(server: ServerClient, address: BackendAddress, model: str | None) -> list[ServedModel]:
    """The models of a server, by the names that requests have. Raises BackendError, and SpecError for a service that
    does not list them."""
    flavor = address.flavor_or_default
    if not flavor.lists_models:
        if model is None:
            raise SpecError(f"{flavor.scheme}:// needs model=...: the name of the deployment.")
        return []
    models = await list_models(server, may_be_missing=model is not None)
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
    session_closer, dialect = _session_closer(server, flavor, info, address, model.name), _dialect(flavor, info, model)
    return HttpBackend(
        server,
        dialect,
        replace(_traits(flavor, model, info), has_agent_sessions=session_closer is not None),
        session_closer,
        read_load=load_reader_for(server, flavor),
        count_tokens=token_counter_for(server, flavor, model.name),
        observe=observe,
        send_hint=_hint_sender(server, info, model.name),
        daily_requests=flavor.daily_requests,
        render_prompt=prompt_renderer_for(server, dialect) if flavor.extensions.prompt_ids else None,
        late_aborts=_late_aborts(flavor, info),
    )


def _late_aborts(flavor: Flavor, info: ServerInfo) -> "LateAborts | None":
    if not has_unstable_tier(info, flavor.name):
        return None
    from .http.late_abort import LateAborts  # only one version of vLLM needs it

    return LateAborts()


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
        from .dialects.anthropic.encoder import AnthropicMessages

        return AnthropicMessages(max_output_tokens=model.max_output_tokens, strict_schema=flavor is ANTHROPIC)
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


def _traits(flavor: Flavor, model: ServedModel, info: ServerInfo) -> Traits:
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
    from .embedded import EmbeddedModelError, LocalServer

    path, slots = parse_local(url)
    notify("Starting the embedded model ...")
    try:
        local = await LocalServer.start(path, slots=slots, notify=notify)
    except EmbeddedModelError as error:
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
    from .embedded import add_schema_hints

    if model is not None and model != served.name:
        shown = "local://" if path is None else f"local://{path}"
        raise SpecError(f"model={model!r} is not served: {shown} serves {served.name!r}. Omit model.")
    flavor, root = replace(LLAMACPP, name="local", native_tools=False, inflight=slots), with_version(url)
    server = ServerClient(open_transport(root, {}, keep_alive=flavor.keep_alive), root)
    return HttpBackend(
        server,
        OpenAIChat(adapt_schema=add_schema_hints if path is None else None),
        _traits(flavor, served, ServerInfo()),
        on_close=on_close,
        count_tokens=token_counter_for(server, flavor, served.name),
        observe=observe,
    )
