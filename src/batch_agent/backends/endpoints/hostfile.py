"""Parser of hostfiles, which list endpoints, one per line."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field
from ipaddress import IPv6Address
from pathlib import Path
from types import MappingProxyType

from yarl import URL

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ...core.safe_text import mask_user_info
from ...core.validation import port as check_port
from ..flavors import BEDROCK, BY_SCHEME

DEFAULT_PORT = 8000
_SERVER_FLAVORS = {scheme: flavor for scheme, flavor in BY_SCHEME.items() if flavor is not BEDROCK}
"""Schemes that name a flavor. Bedrock has regions, not hosts."""
_DEFAULT_PORTS = {"http": 80, "https": 443} | {
    name: URL(each.default_url).port for name, each in _SERVER_FLAVORS.items()
}
_EXAMPLE = """A hostfile has one endpoint per line, as in
  gpu1:8000
  gpu2:8000  role=worker  big   # fields and tags follow the address
  https://gateway:8443/base"""
_COMMENT = re.compile(r"(^|\s)#.*")
_HOST = re.compile(r"\w([\w.-]*\w)?\.?")
_BASE = re.compile(r"(/[^\s?#\0\ud800-\udfff]*)?")
_ADDRESS = re.compile(r".*(://.*|:\d+(/.*)?)")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, with tags and fields by which it can be selected."""

    host: str
    """Host name or IP address; IPv6 without brackets."""
    port: int = DEFAULT_PORT
    tags: Collection[str] = frozenset()
    """A frozenset. A mapping is added to `fields`."""
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)
    scheme: str = "http"
    base: str = ""
    """Path prefix of its API, as in '/base'."""

    def __post_init__(self) -> None:
        if not (isinstance(self.host, str) and (_HOST.fullmatch(self.host) or _is_ipv6(self.host))):
            raise SpecError(f"host must be a host name or IP address, as in 'gpu1'; got {self.host!r}.")
        check_port("port", self.port, least=1)
        if self.scheme not in tuple(_DEFAULT_PORTS):  # also for unhashable values
            raise SpecError(f"scheme must be one of {', '.join(_DEFAULT_PORTS)}; got {self.scheme!r}.")
        if not (isinstance(self.base, str) and _BASE.fullmatch(self.base)):
            raise SpecError(f"base must be a path prefix, as in '/base', or empty; got {self.base!r}.")
        if isinstance(self.tags, str):
            raise SpecError(f"tags={self.tags!r} is a string: pass a set of tags, or a dict of fields.")
        if not isinstance(self.tags, Collection):
            raise SpecError(f"tags must be a set of tags, or a dict of fields; got {self.tags!r}.")
        if not isinstance(self.fields, Mapping):
            raise SpecError(f"fields must be a dict of strings; got {self.fields!r}.")
        if isinstance(self.tags, Mapping):
            object.__setattr__(self, "fields", {**self.tags, **self.fields})
            object.__setattr__(self, "tags", ())
        object.__setattr__(self, "tags", frozenset(self.tags))
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))

    @property
    def url(self) -> str:
        """URL with the base, without the path of a route."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base}"

    def has(self, tag: str) -> bool:
        """Whether it has this tag; `key=value` tests a field."""
        key, is_field, value = tag.partition("=")
        return tag in self.tags or (bool(is_field) and self.fields.get(key) == value)

    def __str__(self) -> str:
        fields = [f"{key}={value}" for key, value in self.fields.items()]
        parts = [self.url, *fields, *sorted(self.tags)]
        return ("\t" if any(" " in part for part in parts) else " ").join(parts)


def parse_hostfile(path_or_lines: str | Path | Iterable[str]) -> list[Endpoint]:
    """The endpoints of a file, or of lines, in their order. A string is the path of a file; `~` is expanded.

    Each line is an address, followed by fields (`key=value`) and tags (bare names), separated by tabs or spaces. In a
    line with tabs, a value may contain single spaces. An address is `host:port`, `host` (port 8000), `host port`,
    `[::1]:8000` or a backend URL. Raises one SpecError for all invalid lines."""
    if isinstance(path_or_lines, str | Path):
        return _parse(_lines_of(Path(path_or_lines)), f"The hostfile {str(path_or_lines)!r}")
    return _parse(path_or_lines, "The hostfile")


class _LineError(Exception):
    """What is wrong with a line."""


def _lines_of(path: Path) -> list[str]:
    try:
        return path.expanduser().read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise SpecError(f"The hostfile {str(path)!r} does not exist. {_EXAMPLE}") from None
    except OSError as error:
        raise SpecError(f"The hostfile {str(path)!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"The hostfile {str(path)!r} is not UTF-8 text. {_EXAMPLE}") from error


def _parse(lines: Iterable[str], name: str) -> list[Endpoint]:
    endpoints: list[Endpoint] = []
    first_lines: dict[tuple[str, int, str], int] = {}
    errors: list[str] = []
    for number, text in _content_lines(lines):
        try:
            endpoint = _endpoint(text)
            authority = (endpoint.host.lower(), endpoint.port, endpoint.base)
            first = first_lines.setdefault(authority, number)
            if first != number:
                raise _LineError(f"{endpoint.url} is already in line {first}")
            endpoints.append(endpoint)
        except _LineError as error:
            errors.append(f"  line {number}: {mask_user_info(text)!r}: {error}")
    if errors:
        raise SpecError("\n".join([f"{name} has {len(errors)} invalid line{'s' * (len(errors) > 1)}:", *errors]))
    if not endpoints:
        raise SpecError(f"{name} lists no endpoints. {_EXAMPLE}")
    return endpoints


def _content_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, without comments, with their numbers."""
    for number, line in enumerate(lines, 1):
        text = _COMMENT.sub("", line.removeprefix("\ufeff")).strip()
        if text:
            yield number, text


def _endpoint(text: str) -> Endpoint:
    address, *parts = _split_fields(text)
    scheme, authority, base = _split_url(address)
    host, port = _host_and_port(authority)
    if parts and re.fullmatch(r"[+-]?\d+", parts[0]):
        if port is not None:
            raise _LineError(f"two ports, {port!r} and {parts[0]!r}")
        port = parts.pop(0)
    tags, fields = _tags_and_fields(parts)
    default = _DEFAULT_PORTS.get(scheme) or DEFAULT_PORT
    return Endpoint(host, default if port is None else _port(port), tags, fields, scheme or "http", base)


def _split_fields(text: str) -> Iterator[str]:
    """Splits a line. Between tabs, a space is part of the value that contains it, unless another field follows."""
    columns = re.split(r"\t+| {2,}", text) if "\t" in text else [text]
    for at, column in enumerate(columns):
        parts = column.split()
        is_single_value = at > 0 and "=" in column and not any("=" in part for part in parts[1:])
        yield from [column.strip()] if is_single_value else parts


def _split_url(address: str) -> tuple[str, str, str]:
    """Scheme, host with port, and base of an address; all but the second may be empty."""
    scheme, is_url, rest = address.partition("://")
    if not is_url:
        return "", address, ""
    if scheme.lower() not in _DEFAULT_PORTS:
        raise _LineError(f"unknown scheme {scheme!r}; use one of {', '.join(_DEFAULT_PORTS)}")
    authority, slash, base = rest.partition("/")
    if "@" in authority:
        raise _LineError("a user name or password is not allowed: set the API key in the environment")
    if invalid := re.search(r"[?#]", rest):
        raise _LineError(f"the URL of an API cannot contain {invalid[0]!r}")
    return scheme.lower(), authority, (slash + base).rstrip("/")


def _host_and_port(authority: str) -> tuple[str, str | None]:
    if authority.startswith("["):
        host, closes, rest = authority[1:].partition("]")
        if not closes or (rest and not rest.startswith(":")):
            raise _LineError("an IPv6 address is written as in '[::1]:8000'")
        return _ipv6(host), rest[1:] if rest else None
    if authority.count(":") > 1:
        raise _LineError("more than one ':'; an IPv6 address is written as in '[::1]:8000'")
    host, has_port, port = authority.partition(":")
    return _name(host), port if has_port else None


def _ipv6(host: str) -> str:
    try:
        return str(IPv6Address(host))
    except ValueError:
        raise _LineError(f"{host!r} is not an IPv6 address") from None


def _is_ipv6(host: str) -> bool:
    try:
        return bool(IPv6Address(host))
    except ValueError:
        return False


def _name(host: str) -> str:
    if not host:
        raise _LineError("the host is empty")
    if host.isdecimal():
        raise _LineError(f"{host!r} is a port without a host")
    if "=" in host:
        raise _LineError("the address must come before the fields")
    if not _HOST.fullmatch(host):
        raise _LineError(f"{host!r} is not a valid host: use letters, digits, '.', '-' and '_' only")
    return host


def _port(text: str) -> int:
    if "#" in text:
        raise _LineError(f"{text!r} is not a port: put a space before the '#' of a comment")
    if not (re.fullmatch("[0-9]{1,5}", text) and 1 <= int(text) <= 65535):
        raise _LineError(f"{text!r} is not a port: use a number from 1 to 65535")
    return int(text)


def _tags_and_fields(parts: Iterable[str]) -> tuple[frozenset[str], dict[str, str]]:
    tags: set[str] = set()
    fields: dict[str, str] = {}
    for part in parts:
        key, is_field, value = part.partition("=")
        if is_field and not key:
            raise _LineError(f"{part!r} has no key before its '='")
        if is_field and key in fields:
            raise _LineError(f"the field {key!r} is repeated")
        if not is_field and _ADDRESS.fullmatch(part):
            raise _LineError(f"{part!r} looks like an address: a host has no spaces, and a line has one endpoint")
        if is_field:
            fields[key] = value
        else:
            tags.add(part)
    return frozenset(tags), fields
