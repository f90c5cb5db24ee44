"""Parser of backend URLs: the server that a URL names, and the API key for it. Nothing is sent."""

import os
import re
from dataclasses import replace
from functools import lru_cache
from ipaddress import ip_address

from yarl import URL

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.options.backend_settings import (
    COMMAND_SCHEME,
    DNS_SCHEME,
    HOSTFILE_SCHEME,
    BackendSettings,
    NamedBackend,
    check_no_key,
    settings_of,
    variable_in,
)
from ..core.safe_text import mask_user_info
from ..core.validation import host_name, suggestion
from .flavors import AZURE, BY_SCHEME, COMPATIBLE, DYNAMO, OPENAI, Flavor

_HOST_WITH_PORT = re.compile(r"[\w.-]+:\d+(/|$)")
_ANTHROPIC_VERSION = "2023-06-01"
_AZURE_RENAMED_TOKENS = "2024-12"
_CREDENTIAL_HEADERS = ("authorization", "api-key", "x-api-key")
_API_PATHS = ("/chat/completions", "/messages")


@dataclass(frozen=True, slots=True)
class BackendAddress:
    """Root URL of a server, with the settings for reaching it. `flavor` is None if the URL does not name it."""

    root: URL
    flavor: Flavor | None
    ends_sessions: bool = False
    """Whether a final request ends each agent's session."""
    settings: BackendSettings = BackendSettings("http://")

    @property
    def flavor_or_default(self) -> Flavor:
        return self.flavor or COMPATIBLE

    @property
    def key(self) -> str | None:
        """The API key, if there is one that may be sent to this server. Raises SpecError for a variable that is not
        set."""
        if self.settings.api_key is not None:
            variable = variable_in(self.settings.api_key)
            return self.settings.api_key if variable is None else environment(variable, self.settings.label)
        variable = self.flavor_or_default.key_variable
        if variable is None or self._has_other_credentials or self._is_exposed:
            return None
        return key_from_environment(variable)

    @property
    def _has_other_credentials(self) -> bool:
        """Whether the URL or a header of the user has credentials, which take precedence over the environment."""
        return self.root.user is not None or any(name.lower() in _CREDENTIAL_HEADERS for name in self.settings.headers)

    @property
    def _is_exposed(self) -> bool:
        """Whether the key of a service would be sent in plain text to another machine."""
        flavor = self.flavor_or_default
        is_of_service = flavor is COMPATIBLE or flavor.is_hosted
        return is_of_service and self.root.scheme == "http" and not is_loopback(self.root.host or "")

    @property
    def key_source(self) -> str:
        """Where the key comes from, for messages; empty if no key is sent."""
        if self.settings.api_key is not None:
            variable = variable_in(self.settings.api_key)
            return "api_key= of the backend" if variable is None else f"the environment variable {variable}"
        if self.root.user is not None:
            return "the URL"
        if self._has_other_credentials:
            return "headers= of the backend"
        return "" if self.key is None else f"the environment variable {self.flavor_or_default.key_variable}"

    @property
    def key_advice(self) -> str:
        """Advice for a key that the server does not accept; empty if there is none."""
        variable = self.flavor_or_default.key_variable
        if source := self.key_source:
            return (
                f"The key is that of {source}." if source.startswith("the env") else f"The key is the one in {source}."
            )
        if variable is None:
            return ""
        if key_from_environment(variable) is not None:
            return f"The key in {variable} is not sent over plain http to another machine: use https."
        return f"No key was sent: set the environment variable {variable}."

    @property
    def is_default(self) -> bool:
        """Whether this is the provider's own service."""
        if self.flavor is None:
            return False
        if self.flavor.domain:
            return (self.root.host or "").endswith(f".{self.flavor.domain}")
        return self.root.host == URL(self.flavor.default_url).host

    def headers(self) -> dict[str, str]:
        """Headers of every request: the key, those of the flavor, and those of the settings, which win. Raises
        SpecError for a variable that is not set."""
        flavor, settings, key = self.flavor_or_default, self.settings, self.key
        found: dict[str, str] = {}
        if flavor.dialect == "anthropic":
            found["anthropic-version"] = settings.api_version or _ANTHROPIC_VERSION
        if key is not None:
            found[flavor.key_header] = f"Bearer {key}" if flavor.key_header == "Authorization" else key
        for name, value in (("OpenAI-Organization", settings.organization), ("OpenAI-Project", settings.project)):
            if value is not None:
                found[name] = value
        own = settings.resolved_headers(lambda variable: environment(variable, settings.label))
        replaced = {name.lower() for name in own}
        return {**{name: value for name, value in found.items() if name.lower() not in replaced}, **own}


def environment(variable: str, label: str) -> str:
    """Value of an environment variable that a backend names. Raises SpecError if it is not set, or cannot be sent in a
    header."""
    value = key_from_environment(variable)
    if value is None:
        raise SpecError(
            f"The backend {label!r} needs the environment variable {variable}, which is not set in this process."
        )
    return value


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


def address_of_backend(given: NamedBackend, *, needs_key: bool = True) -> BackendAddress:
    """The server of a backend that is reached over HTTP. Raises as `address_of` does, and for settings that this kind
    of server does not have."""
    settings = settings_of(given)
    return address_of(parse(settings.url), settings, needs_key=needs_key)


def parse(url: str) -> URL:
    """Parses a backend URL. Raises SpecError if it does not name a known backend."""
    check_no_key(url)
    unmasked, url = url, mask_user_info(url)
    try:
        parsed = URL(unmasked)
    except ValueError as error:
        several = " For several endpoints, use hostfile://PATH, or a list in Python." if "," in url else ""
        raise SpecError(f"backend={url!r} is not a URL: {mask_user_info(str(error))}.{several}") from None
    schemes = ("local", "http", "https", *BY_SCHEME)
    sources = ("hostfile", "dns")
    if parsed.scheme in schemes and "://" not in unmasked:
        raise SpecError(f"backend={url!r}: use two slashes after the colon, as in '{parsed.scheme}://...'.")
    if parsed.scheme not in schemes:
        schemes_text = ", ".join(f"{scheme}://" for scheme in (*schemes, *sources))
        hint = suggestion(parsed.scheme, (*schemes, *sources), "'{}://'") if "://" in url else ""
        if not hint and _HOST_WITH_PORT.match(url):
            hint = f" Did you mean 'http://{url}'?"
        raise SpecError(f"backend={url!r} is not a known backend. Known schemes: {schemes_text}.{hint}")
    if parsed.scheme in ("http", "https") and not parsed.host:
        raise SpecError(f"backend={url!r} has no host. Use a URL as in 'http://127.0.0.1:8000'.")
    host_name(f"backend={url!r}", parsed.host or "")
    return parsed


def address_of(url: URL, settings: BackendSettings | None = None, *, needs_key: bool = True) -> BackendAddress:
    """The server of an http(s):// URL, or of a URL with a flavor as its scheme. Raises SpecError for a missing key,
    unless nothing is sent (`needs_key=False`)."""
    settings = settings or BackendSettings(str(url))
    if url.scheme in ("http", "https"):
        _check_settings(settings, None)
        return BackendAddress(with_version(url), None, settings=settings)
    flavor = BY_SCHEME[url.scheme]
    _check_settings(settings, flavor)
    if not url.host and url.path not in ("", "/"):
        raise SpecError(f"backend={str(url)!r} has no host. Use a URL as in '{url.scheme}://127.0.0.1:8000'.")
    ends_sessions = flavor is DYNAMO and url.query.get("sessions") == "end"
    if ends_sessions:
        url = url.without_query_params("sessions")
    if url.query and not flavor.is_hosted:  # hosted services may need an api-version or the like
        invalid = "&".join(f"{name}={value}" for name, value in url.query.items())
        raise SpecError(
            f"{url.scheme}:// does not accept the option {invalid!r}; the only option is dynamo://...?sessions=end."
        )
    if flavor is AZURE:
        root, flavor = _azure(url, settings)
    elif settings.base_url is not None:
        root = with_version(parse(settings.base_url))
    else:
        root = _server_url(url, flavor)
    address = BackendAddress(root, flavor, ends_sessions, settings)
    if needs_key and flavor.needs_key and address.is_default and not address.key_source:
        raise SpecError(
            f"{flavor.scheme}:// needs an API key: set the environment variable {flavor.key_variable}, or pass "
            f"Backend('{flavor.scheme}://', api_key=...)."
        )
    return address


def _check_settings(settings: BackendSettings, flavor: Flavor | None) -> None:
    """Raises SpecError for settings that this kind of server does not have: they would be ignored."""
    name = "http(s)" if flavor is None else flavor.scheme
    for setting in ("organization", "project"):
        if getattr(settings, setting) is not None and flavor is not OPENAI:
            raise SpecError(f"Backend: {setting} is a setting of openai://, and {name}:// has none.")
    has_version = flavor is AZURE or (flavor is not None and flavor.dialect == "anthropic")
    if settings.api_version is not None and not has_version:
        raise SpecError(f"Backend: api_version is a setting of azure:// and anthropic://, and {name}:// has none.")


def credential_for(given: NamedBackend) -> str | None:
    """Description of the secret or local file that a backend would use; None if it uses none. Nothing is read or sent.
    Raises SpecError for a URL that does not name a backend."""
    settings = settings_of(given)
    if settings.url.startswith(HOSTFILE_SCHEME):
        return "a file on this machine"
    if settings.url.startswith(COMMAND_SCHEME):
        return "a command on this machine"
    if variables := settings.variables:
        return f"your {' and '.join(variables)}"
    if settings.url.startswith(DNS_SCHEME):
        settings = replace(settings, url=settings.url.replace(DNS_SCHEME, "vllm://", 1), refresh=None)
    parsed = parse(settings.url)
    match parsed.scheme:
        case "local":
            return "a file on this machine" if parsed.path not in ("", "/") else None
        case "bedrock":
            return "your AWS credentials"
    address = address_of(parsed, settings)
    return f"your {address.flavor_or_default.key_variable}" if address.key else None


def with_version(url: URL) -> URL:
    """The root of the API: users write URLs with or without /v1, and sometimes with the full path of a route."""
    path = url.raw_path.rstrip("/")
    for schemes_text in _API_PATHS:
        path = path.removesuffix(schemes_text)
    return url.with_path(path or "/v1", encoded=True).with_query(url.query)


def _azure(url: URL, settings: BackendSettings) -> tuple[URL, Flavor]:
    """The root of Azure's API: `/openai/v1`, where requests name the deployment as their model; with an API version
    `/openai`, where it is part of the path. Raises SpecError."""
    named = settings.base_url or (os.environ.get("AZURE_OPENAI_ENDPOINT", "").strip() if not url.host else "")
    if not named and not url.host:
        raise SpecError(
            "azure:// needs the resource: azure://MY-RESOURCE, or its full host; or its endpoint in "
            "the environment variable AZURE_OPENAI_ENDPOINT."
        )
    given = parse(named) if named else _server_url(url, AZURE)
    if given.host and "." not in given.host and not is_loopback(given.host) and not named:
        given = given.with_host(f"{given.host}.openai.azure.com")
    version = settings.api_version or given.query.get("api-version")
    path = given.raw_path.rstrip("/")
    for suffix in ("/v1", "/openai"):
        path = path.removesuffix(suffix)
    if version is None or version == "v1":
        return given.with_path(f"{path}/openai/v1", encoded=True).with_query(given.query), AZURE
    # Older versions refuse the newer name, and newer models the older one.
    tokens = "max_completion_tokens" if version >= _AZURE_RENAMED_TOKENS else "max_tokens"
    extensions = replace(AZURE.extensions, deployment_paths=True, max_tokens_field=tokens)
    root = given.with_path(f"{path}/openai", encoded=True).with_query({**given.query, "api-version": version})
    return root, replace(AZURE, extensions=extensions)


@lru_cache(maxsize=64)
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
    scheme = "https" if flavor.is_hosted and not is_loopback(url.host) else "http"
    return with_version(url.with_scheme(scheme).with_port(url.port or (None if flavor.is_hosted else default.port)))
