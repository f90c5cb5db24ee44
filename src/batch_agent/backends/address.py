"""From a backend URL to the server that it names, and the key for it. Nothing is sent."""

import os
import re
from ipaddress import ip_address

from yarl import URL

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.safe_text import mask_user_info
from ..core.validation import suggestion
from .flavors import BY_SCHEME, COMPATIBLE, DYNAMO, Flavor

_LOOKS_LIKE_A_HOST = re.compile(r"[\w.-]+:\d+(/|$)")
_PATHS_OF_APIS = ("/chat/completions", "/messages")


@dataclass(frozen=True, slots=True)
class BackendAddress:
    """A server, by its root. `flavor` is None where the URL does not say who serves."""

    root: URL
    flavor: Flavor | None
    ends_sessions: bool = False
    """The URL asks for a last request that ends each agent's session."""

    @property
    def key(self) -> str | None:
        """The API key from the environment, if this server may see it."""
        flavor = self.flavor or COMPATIBLE
        if flavor.key_variable is None or self.root.user is not None:  # credentials in the URL are those to use
            return None
        if flavor is COMPATIBLE and self.root.scheme == "http" and not is_near(self.root.host or ""):
            return None  # a key is not for any host that a URL may name, in plain text
        return key_of_environment(flavor.key_variable)

    @property
    def is_default(self) -> bool:
        """Whether this is the provider's own service."""
        return self.flavor is not None and self.root.host == URL(self.flavor.default_url).host


def key_of_environment(variable: str) -> str | None:
    """The key that it holds. Raises SpecError for what cannot be one: it would be sent as something else."""
    key = os.environ.get(variable, "").strip()
    if not key.isprintable():
        raise SpecError(f"The environment variable {variable} holds a line break: it must be one key.")
    if not key.isascii():
        odd = next(character for character in key if not character.isascii())
        raise SpecError(
            f"The environment variable {variable} holds {odd!r}, which no key can: was it copied from a text that puts "
            "typographic characters in the place of others?"
        )
    return key or None


def parse(url: str) -> URL:
    """Raises SpecError for what names no backend."""
    given, url = url, mask_user_info(url)
    try:
        parsed = URL(given)
    except ValueError as error:
        raise SpecError(f"backend={url!r} is not a URL: {mask_user_info(str(error))}.") from None
    schemes = ("local", "http", "https", *BY_SCHEME)
    if parsed.scheme in schemes and "://" not in given:
        raise SpecError(f"backend={url!r}: write two slashes after the colon, as in '{parsed.scheme}://...'.")
    if parsed.scheme not in schemes:
        known = ", ".join(f"{scheme}://" for scheme in (*schemes, "hostfile"))
        hint = suggestion(parsed.scheme, (*schemes, "hostfile"), "'{}://'") if "://" in url else ""
        if not hint and _LOOKS_LIKE_A_HOST.match(url):
            hint = f" Did you mean 'http://{url}'?"
        raise SpecError(f"backend={url!r} names no backend that is known here. Known: {known}.{hint}")
    if parsed.scheme in ("http", "https") and not parsed.host:
        raise SpecError(f"backend={url!r} names no host: write it as in 'http://127.0.0.1:8000'.")
    return parsed


def address_of(url: URL) -> BackendAddress:
    """The server behind an http(s):// URL, or one with the name of a flavor. Raises SpecError for a missing key."""
    if url.scheme in ("http", "https"):
        return BackendAddress(with_version(url), None)
    flavor = BY_SCHEME[url.scheme]
    if not url.host and url.path not in ("", "/"):
        raise SpecError(f"backend={str(url)!r} names no host: write it as in '{url.scheme}://127.0.0.1:8000'.")
    ends_sessions = flavor is DYNAMO and url.query.get("sessions") == "end"
    if ends_sessions:
        url = url.without_query_params("sessions")
    if url.query and URL(flavor.default_url).scheme == "http":  # the others may ask for an api-version or the like
        odd = "&".join(f"{name}={value}" for name, value in url.query.items())
        raise SpecError(f"{url.scheme}:// does not know {odd!r}; only dynamo://...?sessions=end is known.")
    address = BackendAddress(_server_url(url, flavor), flavor, ends_sessions)
    if flavor.needs_key and address.key is None and address.is_default:
        raise SpecError(f"{flavor.name}:// needs an API key: set the environment variable {flavor.key_variable}.")
    return address


def credential_for(url: str) -> str | None:
    """The secret or the file of this machine that would be used for a backend, in words; None where there is none.
    Nothing is read or sent. Raises SpecError for a URL that names no backend."""
    if url.startswith("hostfile://"):
        return "a file of this machine"
    parsed = parse(url)
    match parsed.scheme:
        case "local":
            return "a file of this machine" if parsed.path not in ("", "/") else None
        case "bedrock":
            return "your AWS credentials"
    address = address_of(parsed)
    return f"your {(address.flavor or COMPATIBLE).key_variable}" if address.key else None


def with_version(url: URL) -> URL:
    """Servers are named with or without the /v1 of their API, and sometimes by the whole path of it."""
    path = url.raw_path.rstrip("/")
    for known in _PATHS_OF_APIS:
        path = path.removesuffix(known)
    return url.with_path(path or "/v1", encoded=True).with_query(url.query)


def is_near(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _server_url(url: URL, flavor: Flavor) -> URL:
    default = URL(flavor.default_url)
    if not url.host:
        configured = os.environ.get(flavor.url_variable, "").strip() if flavor.url_variable else ""
        return with_version(parse(configured)) if configured else default
    is_hosted = default.scheme == "https"
    scheme = "https" if is_hosted and not is_near(url.host) else "http"
    return with_version(url.with_scheme(scheme).with_port(url.port or (None if is_hosted else default.port)))
