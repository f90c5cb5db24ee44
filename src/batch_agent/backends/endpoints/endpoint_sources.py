"""Sources of endpoints that may change while a run goes: a hostfile, the addresses of a DNS name, a command."""

import asyncio
import os
import shlex
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from yarl import URL

from ...core.errors import BackendError, ErrorKind, SpecError
from ...core.options.backend_settings import (
    COMMAND_SCHEME,
    DNS_SCHEME,
    HOSTFILE_SCHEME,
    NamedBackend,
    NamedBackends,
    endpoints_in,
    has_source,
    settings_of,
)
from ...core.safe_text import mask_user_info
from ...supervisor import ProgramCommand, ProgramError, ProgramLimits, run_program
from .endpoint_identity import backend_url, check_distinct
from .hostfile import Endpoint, parse_hostfile

_HOSTFILE_SECONDS = 2.0
"""Between two looks at the time of change of a hostfile. One stat(2) costs microseconds, and works where notification
does not: on NFS, and for the files that Kubernetes mounts, which are links that it replaces."""
_DNS_SECONDS = 10.0
"""Between two lookups. Kubernetes' DNS lets answers live for 5 to 30 s; the resolver does not tell us."""
_COMMAND_SECONDS = 30.0
_COMMAND_TIMEOUT = 30.0
_COMMAND_LIMITS = ProgramLimits(max_bytes=1 << 20)
_MAX_QUOTED = 300


class EndpointSource(Protocol):
    """Lists the endpoints of a pool, again and again."""

    @property
    def name(self) -> str:
        """Identifies the source in messages."""
        ...

    @property
    def patience(self) -> int:
        """Listings in a row that must lack an endpoint before it is drained."""
        ...

    async def endpoints(self) -> Sequence[Endpoint]:
        """At least one. Raises SpecError and BackendError."""
        ...

    async def wait(self) -> None:
        """Returns when the list may have changed."""
        ...


def source_of(given: NamedBackend) -> EndpointSource:
    """The source that a backend with `has_source` names. Raises SpecError. Reads nothing."""
    settings = settings_of(given)
    url, seconds = settings.url, settings.refresh
    if url.startswith(DNS_SCHEME):
        return DnsSource(url, seconds or _DNS_SECONDS)
    if url.startswith(COMMAND_SCHEME):
        return CommandSource(url.removeprefix(COMMAND_SCHEME), seconds or _COMMAND_SECONDS)
    return HostfileSource(url.removeprefix(HOSTFILE_SCHEME), seconds or _HOSTFILE_SECONDS)


async def endpoints_from(source: EndpointSource, given: NamedBackend) -> list[NamedBackend]:
    """What the source lists now, with the settings that were given with it. Raises SpecError and BackendError."""
    urls = [backend_url(each) for each in await source.endpoints()]
    return [*urls] if isinstance(given, str) else [replace(given, url=url, refresh=None) for url in urls]


async def list_endpoints(given: NamedBackends) -> list[NamedBackend]:
    """All endpoints, with those that sources list now. Raises SpecError, also for an endpoint that is listed twice with
    the same key, and BackendError."""
    found: list[NamedBackend] = []
    for each in endpoints_in(given):
        found += await endpoints_from(source_of(each), each) if has_source(each) else [each]
    return check_distinct(found)


class HostfileSource:
    """File with one endpoint per line, read again when its time, size or inode has changed."""

    patience = 1

    def __init__(self, path: str, seconds: float) -> None:
        self.name = f"The hostfile {path!r}"
        self._path = path
        self._seconds = seconds
        self._seen: tuple[int, ...] | None = None

    async def endpoints(self) -> list[Endpoint]:
        self._seen = await asyncio.to_thread(self._signature)  # before it is read: a change meanwhile is seen later
        return await asyncio.to_thread(parse_hostfile, self._path)

    async def wait(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            if await asyncio.to_thread(self._signature) != self._seen:
                return

    def _signature(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(Path(self._path).expanduser())
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


class DnsSource:
    """All addresses of a name, looked up again and again. An answer may have only some of them, so an address must be
    missing twice in a row."""

    patience = 2

    def __init__(self, url: str, seconds: float) -> None:
        self.name = mask_user_info(url)
        self._seconds = seconds
        example = f"Write dns://NAME:PORT, as in 'dns://vllm.default.svc:8000'; got {self.name!r}."
        try:
            parsed = URL(url)
            host, port = parsed.host, parsed.port
            (host or "").encode("idna")
        except ValueError:  # also a UnicodeError, for a name that the resolver would not take
            raise SpecError(example) from None
        if not host or port is None:
            raise SpecError(example)
        if parsed.user or parsed.query or parsed.fragment:
            raise SpecError(f"dns:// has no user, query or fragment. {example}")
        self._host, self._port, self._base = host, port, parsed.path.rstrip("/")

    async def endpoints(self) -> list[Endpoint]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            reason = error.strerror or str(error)
            raise BackendError(ErrorKind.UNAVAILABLE, f"{self.name} cannot be resolved: {reason}.") from error
        addresses = dict.fromkeys(str(address[0]) for *_, address in found if "%" not in str(address[0]))
        if not addresses:
            raise BackendError(ErrorKind.UNAVAILABLE, f"{self.name} has no addresses.")
        return [Endpoint(address, self._port, base=self._base) for address in addresses]

    async def wait(self) -> None:
        await asyncio.sleep(self._seconds)


class CommandSource:
    """Program that writes a hostfile to stdout, started again and again. There is no shell in between: words are split
    and quoted as in a POSIX shell, and pipes need `sh -c '...'`."""

    patience = 1

    def __init__(self, command: str, seconds: float) -> None:
        self._seconds = seconds
        try:
            self._argv: Sequence[str] = shlex.split(command)
        except ValueError as error:
            raise SpecError(f"command: {command!r} is not quoted correctly: {str(error).lower()}.") from None
        if not self._argv:
            raise SpecError("command: names no program. Write it as in 'command:./endpoints.sh --zone a'.")
        self.name = f"The command {self._argv[0]!r}"

    async def endpoints(self) -> list[Endpoint]:
        command = ProgramCommand(self._argv, {**os.environ})
        try:
            async with asyncio.timeout(_COMMAND_TIMEOUT):
                result = await run_program(command, _COMMAND_LIMITS)
        except TimeoutError:
            problem = f"did not end within {_COMMAND_TIMEOUT:g} s, and was stopped"
            raise BackendError(ErrorKind.UNAVAILABLE, f"{self.name} {problem}.") from None
        except ProgramError as error:
            raise SpecError(f"{self.name}, which lists the endpoints, failed: {error}") from error
        if result.code != 0:
            said = result.err.strip()[-_MAX_QUOTED:]
            problem = f"ended with exit status {result.code}{f': {said}' if said else ' and wrote nothing to stderr'}"
            raise BackendError(ErrorKind.UNAVAILABLE, f"{self.name}, which lists the endpoints, {problem}")
        try:
            return parse_hostfile(result.out.decode().split("\n"))
        except UnicodeDecodeError as error:
            raise SpecError(f"{self.name} wrote something other than UTF-8 text.") from error
        except SpecError as error:
            raise SpecError(f"{self.name}: {str(error).replace('The hostfile', 'its output', 1)}") from None

    async def wait(self) -> None:
        await asyncio.sleep(self._seconds)
