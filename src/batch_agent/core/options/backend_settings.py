"""Backend with its own key, headers and limits: what `Backend("openai://", api_key=...)` makes."""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, field, fields
from typing import Any, TypeAlias

from ..errors import SpecError
from ..fast_dataclass import dataclass
from ..safe_text import mask_user_info, public_url
from ..validation import at_least, seconds, suggestion, text_or_none

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_KEY_PREFIX = re.compile(r"(sk-|sk_|gsk_|AIza|tgp_v1_|hf_|nvapi-|xai-)")
"""How the keys of some services begin."""
_SECRET_IN_URL = re.compile(r"//[^/@]*@|[?&][^=&]*(?:key|token|secret|sig|password)[^=&]*=", re.IGNORECASE)
_OWN_HEADERS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection"})
PUBLIC_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "anthropic-beta",
        "anthropic-version",
        "connection",
        "content-length",
        "content-type",
        "host",
        "http-referer",
        "openai-organization",
        "openai-project",
        "user-agent",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-dynamo-session-final",
        "x-dynamo-session-id",
        "x-openrouter-title",
        "x-title",
    }
)
"""Request headers that hold no secret. The value of any other header of a backend may be one."""
_MASK = "***"
HOSTFILE_SCHEME = "hostfile://"
DNS_SCHEME = "dns://"
COMMAND_SCHEME = "command:"
SOURCE_SCHEMES = (HOSTFILE_SCHEME, DNS_SCHEME, COMMAND_SCHEME)
"""Beginnings of URLs that name a source of endpoints, which may come and go."""


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """A backend by its URL, with its own model, key, headers and limits; exported as `Backend`. A secret may be written
    as "${NAME}": the environment variable is read when the backend is connected, by the process that connects, so
    workers read their own. A key that is given as a value stays in this process."""

    url: str
    """As for `backend=`: the scheme names the kind of server, as in "groq://" or "azure://my-resource"."""
    _: KW_ONLY
    model: str | None = None
    """Model on this backend. None: that of the run."""
    api_key: str | None = None
    """None: the environment variable of the service, such as OPENAI_API_KEY."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request, such as those that a gateway needs."""
    base_url: str | None = None
    """Address, if it is not the service's own: "http://proxy:8080/v1". The scheme of `url` still names the kind."""
    organization: str | None = None
    """Header OpenAI-Organization."""
    project: str | None = None
    """Header OpenAI-Project."""
    api_version: str | None = None
    """Version of the API: Azure's `api-version`, or Anthropic's header `anthropic-version`."""
    max_inflight: int | None = None
    """Requests in flight to this backend, at most. A lower limit of the run applies too."""
    rpm: int | None = None
    """Requests per minute, likewise."""
    tpm: int | None = None
    """Tokens per minute, likewise."""
    refresh: float | None = None
    """Seconds between two looks at the endpoints that hostfile:// (2 s), dns:// (10 s) or command: (30 s) name."""
    session_header: str | None = None
    """Header with an id of the agent in each request, for a router that keeps the requests of a session together:
    "X-Session-ID" for vLLM Router."""

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise SpecError(f"Backend: url must be a URL such as 'openai://'; got {self.url!r}.")
        check_no_key(self.url)
        for name in ("model", "organization", "project", "api_version"):
            text_or_none(name, getattr(self, name))
            if getattr(self, name) == "":
                raise SpecError(f"Backend: {name} is empty. Omit it, or set it to a value.")
        self._check_key()
        self._check_headers()
        self._check_base_url()
        for name in ("max_inflight", "rpm", "tpm"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)
        if self.refresh is not None:
            self._check_refresh()
        if self.session_header is not None:
            self._check_session_header(self.session_header)

    def _check_key(self) -> None:
        key = self.api_key
        if key is None:
            return
        if not isinstance(key, str):  # its value is not shown: it may hold the key
            raise SpecError(f"Backend: api_key must be a string, or None; got a {type(key).__name__}.")
        if not key.strip():
            raise SpecError("Backend: api_key is empty. Is the variable that it was read from set?")
        _check_sendable("api_key", key)
        if "${" in key and variable_in(key) is None:
            raise SpecError("Backend: api_key must be one key, or the name of a variable as in '${GROQ_API_KEY}'.")
        object.__setattr__(self, "api_key", key.strip())

    def _check_headers(self) -> None:
        headers = self.headers
        if not isinstance(headers, Mapping):
            raise SpecError(f"Backend: headers must be a dict of names and values; got a {type(headers).__name__}.")
        for name, value in headers.items():
            if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
                raise SpecError(f"Backend: {name!r} is not a valid name of a header.")
            if name.lower() in _OWN_HEADERS:
                raise SpecError(f"Backend: the header {name!r} is set by the client. Remove it.")
            if not isinstance(value, str):
                raise SpecError(f"Backend: headers[{name!r}] must be a string; got a {type(value).__name__}.")
            _check_sendable(f"headers[{name!r}]", value)
        object.__setattr__(self, "headers", dict(headers))

    def _check_refresh(self) -> None:
        seconds("refresh", self.refresh)
        if not self.url.startswith(SOURCE_SCHEMES):
            raise SpecError(f"Backend: refresh is a setting of hostfile://, dns:// and command:; got {self.label!r}.")

    def _check_session_header(self, name: str) -> None:
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise SpecError(f"Backend: session_header must be the name of a header; got {name!r}.")
        if name.lower() in _OWN_HEADERS or name.lower() in {each.lower() for each in self.headers}:
            raise SpecError(f"Backend: the header {name!r} is already set. Name another session_header.")

    def _check_base_url(self) -> None:
        if self.base_url is None:
            return
        if not isinstance(self.base_url, str) or not self.base_url.startswith(("http://", "https://")):
            raise SpecError("Backend: base_url must be a URL that begins with http:// or https://.")
        scheme, _, host = self.url.partition("://")
        if host.strip("/") or scheme in ("http", "https", "local", "bedrock") or has_source(self):
            shown = public_url(self.url)
            raise SpecError(
                f"Backend: {shown!r} and base_url both name a server. With base_url, the URL names only the kind of "
                "server, as in Backend('openai://', base_url='http://proxy:8080/v1')."
            )

    @property
    def label(self) -> str:
        """The address for messages, without secrets."""
        address = self.url if self.base_url is None else self.base_url
        return public_url(address) if "?" in address else mask_user_info(address)

    @property
    def secret_values(self) -> tuple[str, ...]:
        """Names of the settings that hold a secret as a value."""
        found = [name for name in ("url", "base_url") if _SECRET_IN_URL.search(getattr(self, name) or "")]
        if self.api_key is not None and variable_in(self.api_key) is None:
            found.append("api_key")
        return (*found, *(f"headers[{name!r}]" for name, value in self.headers.items() if _is_secret(name, value)))

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that the settings name."""
        texts = [self.api_key or "", *self.headers.values()]
        return tuple(dict.fromkeys(name for text in texts for name in _VARIABLE.findall(text)))

    def resolved_headers(self, value_of: Callable[[str], str]) -> dict[str, str]:
        """The headers with the values of the variables that they name."""
        return {name: _VARIABLE.sub(lambda found: value_of(found[1]), text) for name, text in self.headers.items()}

    def to_table(self) -> dict[str, Any]:
        """The settings that are given, for batch.toml and for other processes. Raises SpecError for a secret that is
        given as a value: it is not written anywhere."""
        self.check_has_no_secret()
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in given.items() if value not in (None, {})}

    def check_has_no_secret(self) -> None:
        """Raises SpecError for a secret that is given as a value, before it would be sent to another process."""
        if values := self.secret_values:
            raise SpecError(
                f"Backend {self.label!r}: {values[0]} is given as a value, which is not sent to other processes or "
                f'stored. Write {values[0]}="${{NAME}}", and set the environment variable NAME wherever the run has a '
                "worker."
            )

    def __hash__(self) -> int:
        return hash((self.url, self.base_url, self.model, self.api_key))

    def __repr__(self) -> str:
        shown = [repr(self.label if self.base_url is None else self.url)]
        for each in fields(self)[1:]:
            value = getattr(self, each.name)
            if value in (None, {}):
                continue
            if each.name == "api_key":
                value = value if variable_in(value) else _MASK
            elif each.name == "headers":
                value = {name: _MASK if _is_secret(name, text) else text for name, text in value.items()}
            elif each.name == "base_url":
                value = self.label
            shown.append(f"{each.name}={value!r}")
        return f"Backend({', '.join(shown)})"

    def __getstate__(self) -> list[Any]:
        """For pickle. Raises SpecError for a secret that is given as a value."""
        self.check_has_no_secret()
        return [getattr(self, each.name) for each in fields(self)]

    def __copy__(self) -> "BackendSettings":
        return self

    def __deepcopy__(self, memo: object) -> "BackendSettings":
        return self


Backend = BackendSettings
"""Public name. Inside of the package, `Backend` is the protocol of an open backend."""
NamedBackend: TypeAlias = str | BackendSettings
"""A backend that is named, and not opened by the caller."""
NamedBackends: TypeAlias = NamedBackend | Sequence[NamedBackend]
NAMED = (str, BackendSettings, Sequence)
"""Types of `backend=` for which the run opens the backend itself."""


def endpoints_in(backend: NamedBackends) -> Sequence[NamedBackend]:
    """The backends that are named: one, or those of a list."""
    return [backend] if isinstance(backend, str | BackendSettings) else backend


def has_source(given: NamedBackend) -> bool:
    """Whether it names a source of endpoints, and not one endpoint."""
    return (given if isinstance(given, str) else given.url).startswith(SOURCE_SCHEMES)


def is_backend_url(text: str) -> bool:
    """Whether it is a URL, and not the name of a backend in a file."""
    return "://" in text or text.startswith(COMMAND_SCHEME)


def settings_of(given: NamedBackend) -> BackendSettings:
    return given if isinstance(given, BackendSettings) else BackendSettings(given)


def backend_from_table(name: str, table: Mapping[str, Any]) -> BackendSettings:
    """A backend from a table of a file, such as [backends.NAME] in batch.toml. Raises SpecError, also for a secret that
    is written into the file."""
    where, known = f"backends.{name}", [each.name for each in fields(BackendSettings)]
    given = {str(key).replace("-", "_"): value for key, value in table.items()}
    for key in given:
        if key not in known:
            raise SpecError(
                f"{where}: unknown setting {key!r}.{suggestion(key, known, '{!r}')} Known: {known_names()}."
            )
    if "url" not in given:
        raise SpecError(f'{where}: url is missing. Write url = "openai://", or that of another backend.')
    try:
        made = BackendSettings(**given)
    except SpecError as error:
        raise SpecError(f"{where}: {str(error).removeprefix('Backend: ')}") from None
    if values := made.secret_values:
        raise SpecError(
            f'{where}: {values[0]} is a secret, which must not be in a file. Write "${{NAME}}", and set the '
            "environment variable NAME."
        )
    return made


def known_names() -> str:
    return ", ".join(each.name for each in fields(BackendSettings))


def variable_in(secret: str) -> str | None:
    """The environment variable that "${NAME}" names; None for any other text."""
    found = _VARIABLE.fullmatch(secret)
    return None if found is None else found[1]


def check_no_key(url: str) -> None:
    """Raises SpecError for a URL that has an API key where the host belongs. The key is not shown."""
    scheme, mark, rest = url.partition("://")
    if mark and (found := _KEY_PREFIX.match(rest)) and len(rest) - len(found[0]) >= 12:
        raise SpecError(
            f"backend='{scheme}://{found[0]}***' has an API key in the URL. Set the environment variable of the "
            f"service, or pass Backend('{scheme}://', api_key=...)."
        )


def is_secret_header(name: str) -> bool:
    """Whether the value of a header of a request may be a secret."""
    return name.lower() not in PUBLIC_HEADERS


def _is_secret(name: str, value: str) -> bool:
    return is_secret_header(name) and _VARIABLE.search(value) is None


def _check_sendable(what: str, text: str) -> None:
    if not text.strip().isprintable():
        raise SpecError(f"Backend: {what} contains a line break.")
    if not text.isascii():
        raise SpecError(f"Backend: {what} contains characters that cannot be sent in a header.")


def check_backend(backend: Any) -> None:
    """Raises SpecError if it is neither a URL nor settings, nor several of them, nor an open backend."""
    if isinstance(backend, BackendSettings):
        return
    if isinstance(backend, str):
        check_no_key(backend)
        return
    if isinstance(backend, list | tuple | Set):
        is_valid = bool(backend) and all(isinstance(each, str | BackendSettings) for each in backend)
        for url in backend if is_valid else ():
            check_backend(url)
    else:
        is_valid = callable(getattr(backend, "stream", None))
    if not is_valid:
        raise SpecError(f"backend must be a URL, Backend(...), a list of these, or an open backend; got {backend!r}.")


def joint_limit(name: str, settings: Sequence[BackendSettings], endpoints: int) -> int | None:
    """The limit of all endpoints together; None if none has one. Raises SpecError if only some have one."""
    found = [limit for each in settings if (limit := getattr(each, name)) is not None]
    if found and len(found) < endpoints:
        raise SpecError(f"Only some of the endpoints have {name}=: set it on each, or once on the run.")
    return sum(found) or None
