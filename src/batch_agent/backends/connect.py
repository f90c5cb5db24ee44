"""Connection to the backend that a URL names: probes the server, and opens it or a pool of endpoints."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from ..core.options.backend_settings import BackendSettings, NamedBackend, NamedBackends, has_source, settings_of
from ..core.protocols.backend import Backend
from ..core.requests import RequestObserver, Usage
from ..lazy_imports import lazy_modules
from .address import BackendAddress, address_of, parse
from .backend_assembly import detect_flavor, http_backend
from .endpoints.endpoint_identity import check_distinct, labelled
from .flavors import Flavor
from .http.client import ServerClient
from .http.transport_selection import open_transport
from .http_backend import HttpBackend
from .local import open_local
from .probe import ServedModel, ServerInfo, inspect_server, list_models, probe_tools, select_model
from .startup_wait import Notify

with lazy_modules(globals()):
    from . import bedrock
    from .endpoints import endpoint_pool, endpoint_watcher

if TYPE_CHECKING:
    from .endpoints.endpoint_pool import EndpointPool


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """Options of the trial request, which finds out whether a server accepts tools."""

    with_budget: Callable[[Backend], Backend] | None = None
    """Wraps the backend so that the trial is charged to the run's budget."""
    assume_tools: bool = True
    """The answer to assume if the budget does not allow the trial."""
    on_usage: Callable[[Usage], None] | None = None
    """Called with the usage of the trial."""
    has_peers: bool = False
    """The server is one of several endpoints. If it also rejects requests without tools, its error is raised, and the
    other endpoints are used."""


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
    if any(map(has_source, given)):
        trial = replace(trial or TrialRequest(), has_peers=True)
        open_one = partial(
            _connect_one, model=model, uses_tools=uses_tools, notify=notify, trial=trial, observe=observe
        )
        return await endpoint_watcher.open_watched_pool(given, open_one, notify)
    urls = given if len(given) == 1 else check_distinct(given)
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
        return await open_local(parsed, model, notify, observe)
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
