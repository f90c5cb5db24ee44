"""From a backend URL to a connected backend, with what was seen of the server."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from yarl import URL

from ..core.errors import BackendError, ErrorKind, SpecError
from ..core.fast_dataclass import dataclass
from ..core.protocols import Backend, Traits
from ..core.requests import Usage
from .address import BackendAddress, address_of, parse, with_version
from .dialects.dialect import Dialect
from .dialects.openai.encoder import PATH, OpenAIChat
from .flavors import ANTHROPIC, BY_OWNER, COMPATIBLE, LLAMACPP, Flavor
from .hostfile import Endpoint, parse_hostfile
from .http.client import ServerClient, display_url
from .http.transport import open_transport
from .http_backend import HttpBackend
from .load_metrics import loads_of
from .probe import ServedModel, ServerInfo, admin_url, inspect_server, list_models, select_model, takes_tools
from .session_cleanup import SessionCloser, close_session, final_request
from .token_counter import counter_of

if TYPE_CHECKING:
    from .endpoint_pool import EndpointPool

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """How a run finds out whether a server takes tools."""

    pay: Callable[[Backend], Backend] | None = None
    """The same backend, within the run's budget."""
    otherwise: bool = True
    """What is assumed where nothing is left to try it."""
    tell: Callable[[Usage], None] | None = None
    """Hears what it took."""
    is_one_of_several: bool = False
    """An endpoint that refuses requests without tools too is left to its peers, which may take both."""


_HOSTFILE = "hostfile://"
_ANTHROPIC_VERSION = "2023-06-01"


async def connect(
    url: str | Sequence[str], model: str | None, *, uses_tools: bool, notify: Notify, trial: TrialRequest | None = None
) -> Backend:
    """Opens the backend that `url` names; several endpoints, or those of a hostfile, are one. Raises SpecError for a
    URL that names none, BackendError for a server that cannot be used. Nothing is generated, but for one token where
    tools are used and must be tried, as `trial` says."""
    urls = endpoints_of(url)
    if len(urls) == 1:
        return await _connect_one(urls[0], model, uses_tools=uses_tools, notify=notify, trial=trial)
    return await open_endpoint_pool(urls, model, uses_tools=uses_tools, notify=notify, trial=trial)


async def open_endpoint_pool(
    urls: Sequence[str],
    model: str | None,
    *,
    uses_tools: bool,
    notify: Notify,
    patience: float | None = None,
    trial: TrialRequest | None = None,
) -> "EndpointPool":
    """`patience`: seconds in which each must have shown what it is. Raises as `connect` does."""

    from .endpoint_pool import EndpointPool

    async def open_one(url: str) -> Backend:
        try:
            async with asyncio.timeout(patience):
                one = replace(trial or TrialRequest(), is_one_of_several=len(urls) > 1)
                return await _connect_one(url, model, uses_tools=uses_tools, notify=notify, trial=one)
        except TimeoutError as error:
            raise BackendError(ErrorKind.UNAVAILABLE, f"It does not answer within {patience:g} s.") from error

    return await EndpointPool.open(urls, open_one, notify)


def endpoints_of(url: str | Sequence[str]) -> list[str]:
    """The URLs of all that are named, those of hostfiles too. Raises SpecError, also for one that is named twice."""
    urls = [url] if isinstance(url, str) else list(url)
    found: dict[str, str] = {}
    for each in urls:
        listed = [each]
        if each.startswith(_HOSTFILE):
            listed = [url_of(endpoint) for endpoint in parse_hostfile(each.removeprefix(_HOSTFILE))]
        for one in listed:
            server = _server_of(one)
            if server in found:
                raise SpecError(f"{display_url(URL(one))} is listed twice among the endpoints.")
            found[server] = one
    return list(found.values())


def _server_of(url: str) -> str:
    """The same for all ways to name a server."""
    parsed = parse(url)
    return url if parsed.scheme in ("local", "bedrock") else str(address_of(parsed).root)


def url_of(endpoint: Endpoint) -> str:
    """An address without a path is taken for a vLLM server; who is behind a URL with one is found by asking."""
    is_bare = endpoint.scheme == "http" and not endpoint.base
    return endpoint.url.replace("http://", "vllm://", 1) if is_bare else endpoint.url


async def _connect_one(
    url: str, model: str | None, *, uses_tools: bool, notify: Notify, trial: TrialRequest | None
) -> Backend:
    parsed = parse(url)
    if parsed.scheme == "local":
        return await _open_local(parsed, model, notify)
    if parsed.scheme == "bedrock":
        from .bedrock import open_bedrock  # as the others of which a run needs one: imported when it is

        return await open_bedrock(parsed, model)
    return (await probe_server(address_of(parsed), model, tries_tools=uses_tools, trial=trial)).backend


@dataclass(frozen=True, slots=True)
class ProbedServer:
    """A server that answered, and what was seen of it."""

    backend: HttpBackend
    flavor: Flavor
    served: list[ServedModel]
    sighting: ServerInfo

    @property
    def tries_tools(self) -> bool:
        """Whether only a trial can tell if it makes tool calls."""
        return self.flavor.native_tools is None and self.sighting.tool_parser is not False

    async def refusal_of_tools(self, trial: TrialRequest | None = None) -> BackendError | None:
        """What it says to a request with a tool; None if it takes it. Raises BackendError for other trouble."""
        model, at_once = self.backend.traits.model, self.flavor.refuses_at_once
        trial = trial or TrialRequest()
        backend = self.backend if trial.pay is None else trial.pay(self.backend)
        refusal = await takes_tools(backend, model, refuses_at_once=at_once, tell=trial.tell)
        if refusal is not None and trial.is_one_of_several:
            of_all = await takes_tools(backend, model, refuses_at_once=at_once, tell=trial.tell, tools=())
            if of_all is not None:
                raise of_all
        return refusal

    async def makes_calls(self, trial: TrialRequest | None) -> bool:
        """As it is tried. Raises BackendError for other trouble than a refusal."""
        try:
            return await self.refusal_of_tools(trial) is None
        except BackendError as error:
            if trial is None or trial.pay is None or error.kind is not ErrorKind.BUDGET:
                raise
            return trial.otherwise  # nothing can be sent: only what is done already is of interest


async def probe_server(
    address: BackendAddress, model: str | None, *, tries_tools: bool, trial: TrialRequest | None = None
) -> ProbedServer:
    """Raises as `connect` does."""
    headers = _headers(address.flavor, address.key)
    server = ServerClient(open_transport(address.root, headers), address.root)
    try:
        served = await list_models(server, may_be_missing=model is not None)
        flavor = _settle(address, served)
        chosen = select_model(served, model, address.root)
        sighting = await inspect_server(server, flavor)
        if not flavor.keeps_alive:
            await server.aclose()
            server = ServerClient(open_transport(address.root, headers, keeps_alive=False), address.root)
        dialect = _dialect(flavor, sighting, chosen)
        farewells = _farewells(server, flavor, sighting, address, chosen.name)
        traits = replace(_traits(flavor, chosen, sighting), keeps_agents=farewells is not None)
        loads, counts = loads_of(server, flavor), counter_of(server, flavor, chosen.name)
        backend = HttpBackend(server, dialect, traits, farewells, loads=loads, counts=counts)
        reached = ProbedServer(backend, flavor, served, sighting)
        if tries_tools and reached.tries_tools and await reached.makes_calls(trial):
            reached.backend.traits = replace(traits, native_tools=True)
        return reached
    except BaseException:
        await server.aclose()
        raise


def _settle(address: BackendAddress, served: list[ServedModel]) -> Flavor:
    """Who serves: what the URL says, or what the server calls itself."""
    owner = BY_OWNER.get(served[0].owner) if served else None
    flavor = address.flavor
    if flavor is None:
        return owner or COMPATIBLE
    if flavor is ANTHROPIC and not address.is_default:
        # Somebody else who speaks Anthropic's dialect, with abilities of its own.
        host = owner if owner is not None and owner is not ANTHROPIC else COMPATIBLE
        return replace(host, dialect=ANTHROPIC.dialect, ignores=ANTHROPIC.ignores, refuses_at_once=False)
    return flavor


def _dialect(flavor: Flavor, sighting: ServerInfo, model: ServedModel) -> Dialect:
    if flavor.dialect == "anthropic":
        from .dialects.anthropic.encoder import AnthropicMessages

        return AnthropicMessages(longest_answer=model.longest_answer, strict_schema=flavor is ANTHROPIC)
    extras = flavor.extras
    if extras.session_field and not sighting.sessions:
        extras = replace(extras, session_field="")
    return OpenAIChat(extras)


def _farewells(
    server: ServerClient, flavor: Flavor, sighting: ServerInfo, address: BackendAddress, model: str
) -> SessionCloser | None:
    if flavor.dialect != "openai":
        return None
    if flavor.extras.session_field and sighting.sessions:
        return SessionCloser(server.try_post, close_session(admin_url(server.root, "/close_session")))
    if address.ends_sessions:
        return SessionCloser(server.try_post, final_request(server.url(PATH), model))
    return None


def _headers(flavor: Flavor | None, key: str | None) -> dict[str, str]:
    if flavor is not None and flavor.dialect == "anthropic":
        return {"anthropic-version": _ANTHROPIC_VERSION, **({"x-api-key": key} if key else {})}
    return {"Authorization": f"Bearer {key}"} if key else {}


def _traits(flavor: Flavor, model: ServedModel, sighting: ServerInfo) -> Traits:
    return Traits(
        name=flavor.name,
        model=model.name,
        native_tools=bool(flavor.native_tools),
        json_schema=flavor.json_schema,
        json_schema_beside_tools=flavor.json_schema_beside_tools,
        inflight=flavor.inflight,
        fixed_inflight=flavor.fixed_inflight,
        context_tokens=model.context_tokens,
        # Without a prefix cache nothing is kept between turns, and nobody's place in it is worth guarding.
        kv_tokens=sighting.kv_kept if sighting.prefix_cache is not False else None,
        kv_running_tokens=sighting.kv_tokens,
        strict_schema=flavor.extras.strict_schema or flavor is ANTHROPIC,
        managed_cache=flavor.managed_cache,
        ignores=flavor.ignores,
        seen=tuple(_words(flavor, model, sighting)),
    )


def _words(flavor: Flavor, model: ServedModel, sighting: ServerInfo) -> list[str]:
    seen = [f"{flavor.name} {sighting.version}" if sighting.version else flavor.name]
    if model.context_tokens:
        seen.append(f"context window of {model.context_tokens:,} tokens")
    if sighting.prefix_cache is not None:
        seen.append(f"prefix cache {'on' if sighting.prefix_cache else 'OFF'}")
    if sighting.kv_tokens:
        seen.append(f"KV cache of {sighting.kv_tokens:,} tokens")
    if sighting.sessions:
        seen.append("sessions")
    if sighting.priority:
        seen.append("priorities")
    return seen


async def _open_local(url: URL, model: str | None, notify: Notify) -> Backend:
    from .embedded import EmbeddedModelError, LocalServer, add_schema_hints

    if url.host:
        raise SpecError(
            f"backend={str(url)!r}: write the whole path, after three slashes, as in local:///models/a.gguf."
        )
    if odd := sorted(set(url.query) - {"slots"}):
        raise SpecError(f"backend={str(url)!r}: {odd[0]!r} is not known here; only slots is.")
    path = Path(url.path) if url.path not in ("", "/") else None
    slots = url.query.get("slots")
    if slots is not None and (not slots.isdecimal() or int(slots) < 1):
        raise SpecError(f"backend={str(url)!r}: slots must be a whole number of at least 1.")
    notify("Starting the embedded model ...")
    try:
        local = await LocalServer.start(path, slots=int(slots) if slots else None, notify=notify)
    except EmbeddedModelError as error:
        raise BackendError(ErrorKind.NOT_FOUND, str(error)) from error
    try:
        flavor = replace(LLAMACPP, name="local", inflight=local.slots)
        if model is not None and model != local.model_name:
            raise SpecError(f"model={model!r}: {url} serves {local.model_name!r}; leave model out.")
        served = ServedModel(local.model_name, context_tokens=local.context_tokens)
        traits = _traits(flavor, served, ServerInfo())
        dialect = OpenAIChat(adapt_schema=add_schema_hints if path is None else None)
        root = with_version(URL(local.url))
        server = ServerClient(open_transport(root, {}, keeps_alive=flavor.keeps_alive), root)
        counts = counter_of(server, flavor, local.model_name)
        return HttpBackend(server, dialect, traits, on_close=local.aclose, counts=counts)
    except BaseException:
        await local.aclose()
        raise
