"""Hostfiles, DNS names and commands that list endpoints."""

import asyncio
import os
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.sim_hosts import STEPS, Host, soon, up

from batch_agent import Backend, BackendError, BatchAgent, SpecError
from batch_agent.backends.address import credential_for
from batch_agent.backends.connect import connect
from batch_agent.backends.endpoints import endpoint_sources
from batch_agent.backends.endpoints.endpoint_pool import EndpointPool
from batch_agent.backends.endpoints.endpoint_sources import (
    CommandSource,
    DnsSource,
    HostfileSource,
    list_endpoints,
    source_of,
)


async def urls(source: Any) -> list[str]:
    return [endpoint.url for endpoint in await source.endpoints()]


def python(code: str) -> str:
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"


class Resolver:
    """Stands in for the system's resolver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked: list[tuple[str, int]] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._resolve)

    async def _resolve(self, host: str, port: int, **options: Any) -> list[Any]:
        if host != "llm.svc":
            kind = socket.AF_INET6 if ":" in host else socket.AF_INET
            return [(kind, socket.SOCK_STREAM, 6, "", (host, port))]
        self.asked.append((host, port))
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in self.addresses]


async def test_a_name_stands_for_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(monkeypatch, "10.0.0.2", "10.0.0.1", "10.0.0.2")
    assert await list_endpoints("dns://llm.svc:8000") == ["vllm://10.0.0.2:8000", "vllm://10.0.0.1:8000"]
    assert await list_endpoints("dns://llm.svc:8000/v1") == ["http://10.0.0.2:8000/v1", "http://10.0.0.1:8000/v1"]
    assert resolver.asked == [("llm.svc", 8000)] * 2


async def test_localhost_is_resolved_by_the_system() -> None:
    found = await list_endpoints("dns://localhost:8123")
    assert set(found) <= {"vllm://127.0.0.1:8123", "vllm://[::1]:8123"}
    assert found


async def test_settings_of_a_name_are_those_of_each_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    Resolver(monkeypatch, "10.0.0.1")
    given = Backend("dns://llm.svc:8000", api_key="${KEY}", refresh=1)
    assert await list_endpoints(given) == [Backend("vllm://10.0.0.1:8000", api_key="${KEY}")]


async def test_a_name_that_cannot_be_resolved_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    Resolver(monkeypatch)
    with pytest.raises(BackendError, match=r"dns://llm\.svc:8000 cannot be resolved: Name or service not known"):
        await list_endpoints("dns://llm.svc:8000")


@pytest.mark.parametrize(
    "url", ["dns://llm.svc", "dns://:8000", "dns://", "dns://llm.svc:eighty", "dns://a@b:1", f"dns://{'a' * 64}:1"]
)
async def test_a_name_needs_a_port_and_nothing_else(url: str) -> None:
    with pytest.raises(SpecError, match=r"dns://NAME:PORT"):
        await list_endpoints(url)


async def test_an_address_must_be_missing_twice_before_it_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver may answer with some of the addresses."""
    async with up(Host(STEPS)) as (host,):
        resolver = Resolver(monkeypatch, "127.0.0.1", "127.0.0.2")
        monkeypatch.setattr(endpoint_sources, "_DNS_SECONDS", 1000.0)
        pool = await connect(f"dns://llm.svc:{host.port}", None, uses_tools=False, notify=list[str]().append)
        assert isinstance(pool, EndpointPool)
        one, other = f"vllm://127.0.0.1:{host.port}", f"vllm://127.0.0.2:{host.port}"
        assert pool.names == [one, other]
        await pool.aclose()
        given = Backend(f"dns://llm.svc:{host.port}", refresh=0.01)
        pool = await connect(given, None, uses_tools=False, notify=list[str]().append)
        assert isinstance(pool, EndpointPool)
        resolver.addresses = ["127.0.0.1"]
        asked = len(resolver.asked)
        await soon(lambda: pool.names == [one])
        assert len(resolver.asked) >= asked + 2
        resolver.addresses = []  # a failure of the resolver changes nothing
        asked = len(resolver.asked)
        await soon(lambda: len(resolver.asked) >= asked + 3)
        assert pool.names == [one]
        await pool.aclose()


async def test_agents_run_on_all_addresses_of_a_name() -> None:
    async with up(Host(STEPS)) as (host,):
        results = await BatchAgent.run(
            task="{it}", inputs=["a", "b"], backend=f"dns://localhost:{host.port}", progress=False
        )
    assert all(result.ok for result in results)
    assert host.requests() == 2


async def test_a_command_lists_endpoints_as_a_hostfile_does() -> None:
    source = CommandSource(python("print('gpu1:8000 big  # a tag'); print('https://gateway/v1')"), 1.0)
    assert await urls(source) == ["http://gpu1:8000", "https://gateway:443/v1"]


async def test_a_command_has_no_shell_and_empty_input(tmp_path: Path) -> None:
    code = "import sys; print('gpu' + str(len(sys.argv)) + str(len(sys.stdin.read())))"
    found = await urls(CommandSource(f"{python(code)} 'two words' $HOME '*' ';' 'touch x'", 1.0))
    assert found == ["http://gpu60:8000"]
    marker = tmp_path / "made"
    await urls(CommandSource(f"{python('print(1, end=str()) or print(chr(97))')} ; touch {marker}", 1.0))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "names no program"),
        ("   ", "names no program"),
        ("./list 'a", "is not quoted correctly: no closing quotation"),
    ],
)
def test_an_invalid_command_is_rejected_before_it_runs(command: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        source_of(f"command:{command}")


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("import sys; sys.exit('no zone')", BackendError, "ended with exit status 1: no zone"),
        ("import sys; sys.exit(3)", BackendError, "exit status 3 and wrote nothing to stderr"),
        ("pass", SpecError, "its output lists no endpoints"),
        ("print('gpu1:99999')", SpecError, "its output has 1 invalid line:\n  line 1"),
        ("import os; os.write(1, b'\\xff')", SpecError, "other than UTF-8"),
        ("print('x' * 2_000_000)", SpecError, "wrote more than"),
    ],
)
async def test_a_command_that_fails_is_a_clear_error(code: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        await CommandSource(python(code), 1.0).endpoints()


async def test_a_command_that_does_not_exist_or_does_not_end_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"'no-such-program'.*failed"):
        await CommandSource("no-such-program", 1.0).endpoints()
    monkeypatch.setattr(endpoint_sources, "_COMMAND_TIMEOUT", 0.3)
    with pytest.raises(BackendError, match=r"did not end within 0.3 s, and was stopped"):
        await CommandSource(python("import time; time.sleep(1000)"), 1.0).endpoints()


async def test_a_hostfile_that_is_replaced_or_written_again_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("gpu1\n")
    source = HostfileSource(str(file), 0.01)
    assert await urls(source) == ["http://gpu1:8000"]
    new = tmp_path / "new"
    new.write_text("gpu2\n")
    os.utime(new, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))  # the same time and size
    os.replace(new, file)
    async with asyncio.timeout(60):
        await source.wait()
    assert await urls(source) == ["http://gpu2:8000"]


def test_a_command_and_a_hostfile_are_not_used_by_a_worker_that_was_not_told_to() -> None:
    assert credential_for("command:./list.sh") == "a command on this machine"
    assert credential_for("hostfile://hosts") == "a file on this machine"
    assert credential_for("dns://llm.svc:8000") is None


@pytest.mark.parametrize("url", ["vllm://gpu1:8000", "openai://"])
def test_only_sources_are_looked_at_again(url: str) -> None:
    with pytest.raises(SpecError, match="refresh is a setting of hostfile://, dns:// and command:"):
        Backend(url, refresh=1.0)
    with pytest.raises(SpecError, match="refresh must be more than 0"):
        Backend("dns://a:1", refresh=0)


def test_a_source_says_what_it_is() -> None:
    assert DnsSource("dns://llm.svc:8000", 1.0).name == "dns://llm.svc:8000"
    assert CommandSource("./list --zone a", 1.0).name == "The command './list'"
