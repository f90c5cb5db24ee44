"""Identity of endpoints: which ways to write one name the same server, and the label of each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from yarl import URL

from ...core.errors import SpecError
from ...core.options.backend_settings import NamedBackend, settings_of
from ..address import address_of, parse
from ..http.client import display_url

if TYPE_CHECKING:
    from .hostfile import Endpoint


def check_distinct(endpoints: Sequence[NamedBackend]) -> list[NamedBackend]:
    """The endpoints. Raises SpecError for an invalid one, and for one that is listed twice with the same key."""
    found: dict[tuple[str | None, ...], NamedBackend] = {}
    for endpoint in endpoints:
        identity = identify(endpoint)
        if identity in found:
            raise SpecError(f"{display_url(URL(settings_of(endpoint).url))} is listed twice among the endpoints.")
        found[identity] = endpoint
    return list(found.values())


def identify(endpoint: NamedBackend) -> tuple[str | None, ...]:
    """The same for all ways to write an endpoint with its key. Raises SpecError."""
    settings = settings_of(endpoint)
    return server_of(endpoint), settings.api_key, settings.organization, settings.project


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


def backend_url(endpoint: "Endpoint") -> str:
    """The URL of an endpoint. An address without a path is assumed to be a vLLM server; other URLs are probed."""
    is_address = endpoint.scheme == "http" and not endpoint.base
    return endpoint.url.replace("http://", "vllm://", 1) if is_address else endpoint.url
