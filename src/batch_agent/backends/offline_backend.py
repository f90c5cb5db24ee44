"""Backend of a server that is not connected to: it shows requests as a run would send them."""

from collections.abc import Iterator
from dataclasses import replace

from yarl import URL

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.options.backend_settings import (
    DNS_SCHEME,
    HOSTFILE_SCHEME,
    NamedBackend,
    NamedBackends,
    endpoints_in,
    has_source,
    settings_of,
)
from ..lazy_imports import lazy_modules
from .address import BackendAddress, address_of, parse
from .backend_assembly import detect_flavor, http_backend
from .endpoints.endpoint_identity import backend_url, check_distinct
from .endpoints.hostfile import parse_hostfile
from .flavors import ANTHROPIC, Flavor
from .http.client import ServerClient, display_url
from .http.transport_selection import open_transport
from .http_backend import HttpBackend
from .local import local_backend, parse_local
from .probe import ServedModel, ServerInfo

with lazy_modules(globals()):
    from . import bedrock
    from .embedded import local_server, weights

UNKNOWN_MODEL = "<the server's only model>"


@dataclass(frozen=True, slots=True)
class OfflineBackend:
    """Backend, and what only the server can tell."""

    backend: HttpBackend
    unknowns: tuple[str, ...]


async def open_offline(url: NamedBackends, model: str | None, *, uses_tools: bool) -> OfflineBackend:
    """The backend that a URL names, without a request to it, a key or credentials. Its transport must be closed. Raises
    SpecError for an invalid URL."""
    urls = list(endpoints_in(url))
    if len(urls) > 1 or has_source(urls[0]):  # else its key is not needed
        urls = check_distinct([each for given in urls for each in _offline_endpoints(given)])
    settings = settings_of(urls[0])
    parsed = parse(settings.url)
    match parsed.scheme:
        case "local":
            found = _local(parsed, model)
        case "bedrock":
            found = _bedrock(parsed, model)
        case _:
            found = _server(address_of(parsed, settings, needs_key=False), model, uses_tools=uses_tools)
    if len(urls) == 1:
        return found
    note = f"The run has {len(urls)} endpoints. Shown are the requests to {display_url(parsed)}."
    return replace(found, unknowns=(note, *found.unknowns))


def _offline_endpoints(given: NamedBackend) -> list[NamedBackend]:
    """The endpoints as far as they are known without a lookup: those of a hostfile; one for a name or a command."""
    if not has_source(given):
        return [given]
    settings = settings_of(given)
    if settings.url.startswith(HOSTFILE_SCHEME):
        urls = [backend_url(each) for each in parse_hostfile(settings.url.removeprefix(HOSTFILE_SCHEME))]
    elif settings.url.startswith(DNS_SCHEME):
        address = URL(settings.url)
        urls = [str(address.with_scheme("vllm" if address.path in ("", "/") else "http"))]
    else:
        urls = ["vllm://endpoint"]
    return [replace(settings, url=url, refresh=None) for url in urls]


def _local(url: URL, model: str | None) -> OfflineBackend:
    path, slots = parse_local(url)
    served = ServedModel(weights.DEFAULT_MODEL if path is None else path.stem)
    backend = local_backend(URL("http://127.0.0.1"), path, slots or local_server.DEFAULT_SLOTS, served, model)
    return OfflineBackend(backend, ("The port of the embedded model is chosen when it starts.",))


def _bedrock(url: URL, model: str | None) -> OfflineBackend:
    backend = bedrock.offline_bedrock(url, model, UNKNOWN_MODEL)
    return OfflineBackend(backend, (_MODEL,) if backend.traits.model == UNKNOWN_MODEL else ())


def _server(address: BackendAddress, model: str | None, *, uses_tools: bool) -> OfflineBackend:
    flavor = detect_flavor(address, [])
    unset: list[str] = []
    try:
        headers = address.headers()
    except SpecError as error:  # a variable that it names is not set
        headers, unset = {}, [str(error)]
    server = ServerClient(open_transport(address.root, headers, keep_alive=flavor.keep_alive), address.root)
    backend = http_backend(server, address, flavor, ServedModel(model or UNKNOWN_MODEL), ServerInfo())
    if uses_tools and flavor.native_tools is None:
        backend.traits = replace(backend.traits, native_tools=True)
    return OfflineBackend(backend, (*_unknowns(address, flavor, model, uses_tools=uses_tools), *unset))


_MODEL = "The model is the only one that the server has; its name is known when the server responds."


def _unknowns(address: BackendAddress, flavor: Flavor, model: str | None, *, uses_tools: bool) -> Iterator[str]:
    if address.flavor is None:
        yield (
            "The kind of server is found when the run connects. Shown are the requests to an unknown server with "
            "OpenAI's API; a URL as in vllm://HOST:PORT names the kind."
        )
    elif flavor is not address.flavor:
        yield "The kind of server is found when the run connects, and with it whether it enforces a schema."
    is_service = flavor.needs_key and address.is_default
    if model is None:
        yield f"{flavor.name}:// has several models: a run needs model=..." if is_service else _MODEL
    if uses_tools and flavor.native_tools is None:
        yield (
            "Whether the server accepts tools is found when the run connects. Shown are native tool calls; without "
            "them, tools and calls are text (tool_mode='action')."
        )
    if flavor.extensions.session_field:
        yield f"{flavor.extensions.session_field} is added if the server keeps a session for each agent."
    if flavor is ANTHROPIC:
        yield "Without max_tokens=..., it is 8192 or the most that the model generates."
    if is_service and not address.key_source:
        yield f"The environment variable {flavor.key_variable} is not set: a run needs it."
