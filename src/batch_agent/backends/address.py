"""Parser of backend URLs: the server that a URL names, and the API key for it. Nothing is sent."""

import os
import re
from ipaddress import ip_address

from yarl import URL

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.safe_text import mask_user_info
from ..core.validation import suggestion
from .flavors import BY_SCHEME, COMPATIBLE, DYNAMO, Flavor

_HOST_WITH_PORT = re.compile(r"[\w.-]+:\d+(/|$)")
_API_PATHS = ("/chat/completions", "/messages")


@dataclass(frozen=True, slots=True)
class BackendAddress:
    """Root URL of a server. `flavor` is None if the URL does not name it."""

    root: URL
    flavor: Flavor | None
    ends_sessions: bool = False
    """Whether a final request ends each agent's session."""

    @property
    def key(self) -> str | None:
        """The API key from the environment, if it may be sent to this server."""
        flavor = self.flavor or COMPATIBLE
        if flavor.key_variable is None or self.root.user is not None:  # credentials in the URL take precedence
            return None
        if flavor is COMPATIBLE and self.root.scheme == "http" and not is_loopback(self.root.host or ""):
            return None  # never send the key in plain text to another machine
        return key_from_environment(flavor.key_variable)

    @property
    def key_advice(self) -> str:
        """What to do if the server does not accept the key; empty if that is not known."""
        variable = (self.flavor or COMPATIBLE).key_variable
        if variable is None:
            return ""
        if self.root.user is not None:
            return "The key is the one in the URL."
        if self.key is not None:
            return f"The key is that of the environment variable {variable}."
        if key_from_environment(variable) is not None:
            return f"The key in {variable} is not sent over plain http to another machine: use https."
        return f"No key was sent: set the environment variable {variable}."

    @property
    def is_default(self) -> bool:
        """Whether this is the provider's own service."""
        return self.flavor is not None and self.root.host == URL(self.flavor.default_url).host


def key_from_environment(variable: str) -> str | None:
    """The API key in an environment variable. Raises SpecError for a value that cannot be sent as a header."""
    key = os.environ.get(variable, "").strip()
    if not key.isprintable():
        raise SpecError(f"The environment variable {variable} contains a line break: set it to one API key.")
    if not key.isascii():
        invalid = next(character for character in key if not character.isascii())
        raise SpecError(
            f"The environment variable {variable} contains {invalid!r}, which is not valid in an API key. Was it "
            "copied from a document with typographic characters?"
        )
    return key or None


def parse(url: str) -> URL:
    """Parses a backend URL. Raises SpecError if it does not name a known backend."""
    unmasked, url = url, mask_user_info(url)
    try:
        parsed = URL(unmasked)
    except ValueError as error:
        several = " For several endpoints, use hostfile://PATH, or a list in Python." if "," in url else ""
        raise SpecError(f"backend={url!r} is not a URL: {mask_user_info(str(error))}.{several}") from None
    schemes = ("local", "http", "https", *BY_SCHEME)
    if parsed.scheme in schemes and "://" not in unmasked:
        raise SpecError(f"backend={url!r}: use two slashes after the colon, as in '{parsed.scheme}://...'.")
    if parsed.scheme not in schemes:
        schemes_text = ", ".join(f"{scheme}://" for scheme in (*schemes, "hostfile"))
        hint = suggestion(parsed.scheme, (*schemes, "hostfile"), "'{}://'") if "://" in url else ""
        if not hint and _HOST_WITH_PORT.match(url):
            hint = f" Did you mean 'http://{url}'?"
        raise SpecError(f"backend={url!r} is not a known backend. Known schemes: {schemes_text}.{hint}")
    if parsed.scheme in ("http", "https") and not parsed.host:
        raise SpecError(f"backend={url!r} has no host. Use a URL as in 'http://127.0.0.1:8000'.")
    return parsed


def address_of(url: URL, *, needs_key: bool = True) -> BackendAddress:
    """The server of an http(s):// URL, or of a URL with a flavor as its scheme. Raises SpecError for a missing key,
    unless nothing is sent (`needs_key=False`)."""
    if url.scheme in ("http", "https"):
        return BackendAddress(with_version(url), None)
    flavor = BY_SCHEME[url.scheme]
    if not url.host and url.path not in ("", "/"):
        raise SpecError(f"backend={str(url)!r} has no host. Use a URL as in '{url.scheme}://127.0.0.1:8000'.")
    ends_sessions = flavor is DYNAMO and url.query.get("sessions") == "end"
    if ends_sessions:
        url = url.without_query_params("sessions")
    if url.query and URL(flavor.default_url).scheme == "http":  # hosted services may need an api-version or the like
        invalid = "&".join(f"{name}={value}" for name, value in url.query.items())
        raise SpecError(
            f"{url.scheme}:// does not accept the option {invalid!r}; the only option is dynamo://...?sessions=end."
        )
    address = BackendAddress(_server_url(url, flavor), flavor, ends_sessions)
    if needs_key and flavor.needs_key and address.key is None and address.is_default:
        raise SpecError(f"{flavor.name}:// needs an API key: set the environment variable {flavor.key_variable}.")
    return address


def credential_for(url: str) -> str | None:
    """Description of the secret or local file that a backend would use; None if it uses none. Nothing is read or sent.
    Raises SpecError for a URL that does not name a backend."""
    if url.startswith("hostfile://"):
        return "a file on this machine"
    parsed = parse(url)
    match parsed.scheme:
        case "local":
            return "a file on this machine" if parsed.path not in ("", "/") else None
        case "bedrock":
            return "your AWS credentials"
    address = address_of(parsed)
    return f"your {(address.flavor or COMPATIBLE).key_variable}" if address.key else None


def with_version(url: URL) -> URL:
    """The root of the API: users write URLs with or without /v1, and sometimes with the full path of a route."""
    path = url.raw_path.rstrip("/")
    for schemes_text in _API_PATHS:
        path = path.removesuffix(schemes_text)
    return url.with_path(path or "/v1", encoded=True).with_query(url.query)


def is_loopback(host: str) -> bool:
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
    scheme = "https" if is_hosted and not is_loopback(url.host) else "http"
    return with_version(url.with_scheme(scheme).with_port(url.port or (None if is_hosted else default.port)))
