"""Hostfiles: which endpoints there are, one per line."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field
from ipaddress import IPv6Address
from pathlib import Path
from types import MappingProxyType

from yarl import URL

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.safe_text import mask_user_info
from ..core.validation import port as check_port
from .flavors import BEDROCK, BY_SCHEME

DEFAULT_PORT = 8000
_SERVERS = {scheme: flavor for scheme, flavor in BY_SCHEME.items() if flavor is not BEDROCK}
"""Schemes that name who serves. Bedrock has regions, not hosts."""
_PORT_OF_SCHEME = {"http": 80, "https": 443} | {name: URL(each.default_url).port for name, each in _SERVERS.items()}
_LOOKS_LIKE = """A hostfile has one endpoint per line, as in
  gpu1:8000
  gpu2:8000  role=worker  big   # what follows the address: fields and tags
  https://gateway:8443/base"""
_COMMENT = re.compile(r"(^|\s)#.*")
_HOST = re.compile(r"\w([\w.-]*\w)?\.?")
_BASE = re.compile(r"(/[^\s?#\0\ud800-\udfff]*)?")
_LOOKS_LIKE_AN_ADDRESS = re.compile(r".*(://.*|:\d+(/.*)?)")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, and what is said of it so that it can be chosen."""

    host: str
    """A name or an address; IPv6 without its brackets."""
    port: int = DEFAULT_PORT
    tags: Collection[str] = frozenset()
    """A frozenset. What is given as a mapping are fields."""
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)
    scheme: str = "http"
    base: str = ""
    """The path below which its API begins, as in '/base'."""

    def __post_init__(self) -> None:
        if not (isinstance(self.host, str) and (_HOST.fullmatch(self.host) or _is_ipv6(self.host))):
            raise SpecError(f"host must be the name or the address of a server, as in 'gpu1'; got {self.host!r}.")
        check_port("port", self.port, least=1)
        if self.scheme not in tuple(_PORT_OF_SCHEME):  # also what cannot be a key
            raise SpecError(f"scheme must be one of {', '.join(_PORT_OF_SCHEME)}; got {self.scheme!r}.")
        if not (isinstance(self.base, str) and _BASE.fullmatch(self.base)):
            raise SpecError(f"base must be the beginning of a path, as in '/base', or empty; got {self.base!r}.")
        if isinstance(self.tags, str):
            raise SpecError(f"tags={self.tags!r} is one text: give a set of tags, or a dict of fields.")
        if not isinstance(self.tags, Collection):
            raise SpecError(f"tags must be a set of tags, or a dict of fields; got {self.tags!r}.")
        if not isinstance(self.fields, Mapping):
            raise SpecError(f"fields must be a dict of texts; got {self.fields!r}.")
        if isinstance(self.tags, Mapping):
            object.__setattr__(self, "fields", {**self.tags, **self.fields})
            object.__setattr__(self, "tags", ())
        object.__setattr__(self, "tags", frozenset(self.tags))
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))

    @property
    def url(self) -> str:
        """With its base, without the path of an API."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base}"

    def has(self, tag: str) -> bool:
        """Whether it has this tag; `key=value` asks for a field."""
        key, is_field, value = tag.partition("=")
        return tag in self.tags or (bool(is_field) and self.fields.get(key) == value)

    def __str__(self) -> str:
        fields = [f"{key}={value}" for key, value in self.fields.items()]
        words = [self.url, *fields, *sorted(self.tags)]
        return ("\t" if any(" " in word for word in words) else " ").join(words)


def parse_hostfile(path_or_lines: str | Path | Iterable[str]) -> list[Endpoint]:
    """The endpoints of a file, or of lines, in their order. A text is the path of a file, `~` the home in it.

    Each line is an address, then, apart by tabs or spaces, fields (`key=value`) and tags (bare words). In a line with
    tabs, a value may have single spaces in it. An address is `host:port`, `host` (port 8000), `host port`,
    `[::1]:8000` or a URL, as of a backend. Raises one SpecError for all bad lines."""
    if isinstance(path_or_lines, str | Path):
        return _parse(_lines_of(Path(path_or_lines)), f"The hostfile {str(path_or_lines)!r}")
    return _parse(path_or_lines, "The hostfile")


class _BadLineError(Exception):
    """What is wrong with it."""


def _lines_of(path: Path) -> list[str]:
    try:
        return path.expanduser().read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise SpecError(f"There is no hostfile {str(path)!r}. {_LOOKS_LIKE}") from None
    except OSError as error:
        raise SpecError(f"The hostfile {str(path)!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"The hostfile {str(path)!r} is not a text in UTF-8. {_LOOKS_LIKE}") from error


def _parse(lines: Iterable[str], name: str) -> list[Endpoint]:
    endpoints: list[Endpoint] = []
    first_lines: dict[tuple[str, int, str], int] = {}
    bad: list[str] = []
    for number, text in _said(lines):
        try:
            endpoint = _endpoint(text)
            place = (endpoint.host.lower(), endpoint.port, endpoint.base)
            first = first_lines.setdefault(place, number)
            if first != number:
                raise _BadLineError(f"{endpoint.url} is already in line {first}")
            endpoints.append(endpoint)
        except _BadLineError as error:
            bad.append(f"  line {number}: {mask_user_info(text)!r}: {error}")
    if bad:
        raise SpecError("\n".join([f"{name} has {len(bad)} bad line{'s' * (len(bad) > 1)}:", *bad]))
    if not endpoints:
        raise SpecError(f"{name} names no endpoint. {_LOOKS_LIKE}")
    return endpoints


def _said(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines that say something, without comments, by their numbers."""
    for number, line in enumerate(lines, 1):
        text = _COMMENT.sub("", line.removeprefix("\ufeff")).strip()
        if text:
            yield number, text


def _endpoint(text: str) -> Endpoint:
    address, *words = _words(text)
    scheme, place, base = _parts(address)
    host, port = _host_and_port(place)
    if words and re.fullmatch(r"[+-]?\d+", words[0]):
        if port is not None:
            raise _BadLineError(f"it has two ports, {port!r} and {words[0]!r}")
        port = words.pop(0)
    tags, fields = _tags_and_fields(words)
    default = _PORT_OF_SCHEME.get(scheme) or DEFAULT_PORT
    return Endpoint(host, default if port is None else _port(port), tags, fields, scheme or "http", base)


def _words(text: str) -> Iterator[str]:
    """Between tabs, a space belongs to the value that it stands in, unless another field follows it."""
    cells = re.split(r"\t+| {2,}", text) if "\t" in text else [text]
    for at, cell in enumerate(cells):
        words = cell.split()
        is_value = at > 0 and "=" in cell and not any("=" in word for word in words[1:])
        yield from [cell.strip()] if is_value else words


def _parts(address: str) -> tuple[str, str, str]:
    """Scheme, host with port, and base of an address; all but the second may be empty."""
    scheme, is_url, rest = address.partition("://")
    if not is_url:
        return "", address, ""
    if scheme.lower() not in _PORT_OF_SCHEME:
        raise _BadLineError(f"the scheme {scheme!r} is not known: {', '.join(_PORT_OF_SCHEME)}")
    place, slash, base = rest.partition("/")
    if "@" in place:
        raise _BadLineError("a name or a password does not belong here: set the API key in the environment")
    if odd := re.search(r"[?#]", rest):
        raise _BadLineError(f"a URL with a {odd[0]!r} cannot be the base of an API")
    return scheme.lower(), place, (slash + base).rstrip("/")


def _host_and_port(place: str) -> tuple[str, str | None]:
    if place.startswith("["):
        host, closes, rest = place[1:].partition("]")
        if not closes or (rest and not rest.startswith(":")):
            raise _BadLineError("an IPv6 address is written as in '[::1]:8000'")
        return _ipv6(host), rest[1:] if rest else None
    if place.count(":") > 1:
        raise _BadLineError("it has more than one ':'; an IPv6 address is written as in '[::1]:8000'")
    host, has_port, port = place.partition(":")
    return _name(host), port if has_port else None


def _ipv6(host: str) -> str:
    try:
        return str(IPv6Address(host))
    except ValueError:
        raise _BadLineError(f"{host!r} is not an IPv6 address") from None


def _is_ipv6(host: str) -> bool:
    try:
        return bool(IPv6Address(host))
    except ValueError:
        return False


def _name(host: str) -> str:
    if not host:
        raise _BadLineError("the host is empty")
    if host.isdecimal():
        raise _BadLineError(f"{host!r} is a port without a host")
    if "=" in host:
        raise _BadLineError("the address comes first, then the fields")
    if not _HOST.fullmatch(host):
        raise _BadLineError(f"{host!r} is not a host: letters, digits, '.', '-' and '_' only")
    return host


def _port(text: str) -> int:
    if "#" in text:
        raise _BadLineError(f"{text!r} is not a port: leave a space before the '#' of a comment")
    if not (re.fullmatch("[0-9]{1,5}", text) and 1 <= int(text) <= 65535):
        raise _BadLineError(f"{text!r} is not a port: a number from 1 to 65535")
    return int(text)


def _tags_and_fields(words: Iterable[str]) -> tuple[frozenset[str], dict[str, str]]:
    tags: set[str] = set()
    fields: dict[str, str] = {}
    for word in words:
        key, is_field, value = word.partition("=")
        if is_field and not key:
            raise _BadLineError(f"{word!r} has no key before its '='")
        if is_field and key in fields:
            raise _BadLineError(f"the field {key!r} is given twice")
        if not is_field and _LOOKS_LIKE_AN_ADDRESS.fullmatch(word):
            raise _BadLineError(f"{word!r} looks like an address: no spaces in a host, and one endpoint per line")
        if is_field:
            fields[key] = value
        else:
            tags.add(word)
    return frozenset(tags), fields
