"""The hub in Redis when the server, or the way to it, is not what it should be."""

import asyncio
import contextlib
import re
import shutil
import ssl
import subprocess
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.contract.coordinator_contract import LONG, STARTED, ends, jobs, leased, told
from tests.support.redis_server import AOF, RedisServer, redis_of_its_own, redis_server

from batch_agent.cluster.redis.lua.common import REQUIRED_SERVER
from batch_agent.cluster.redis.redis_coordinator import RedisCoordinator, runs_known
from batch_agent.core.errors import SpecError, StoreError

__all__ = ["redis_server"]

SHORT = 0.4


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_of_its_own(*AOF) as server:
        yield server


@contextlib.asynccontextmanager
async def opened(url: str, run: str = "run") -> AsyncIterator[RedisCoordinator]:
    coordinator = RedisCoordinator(url, run, retry_seconds=20)
    try:
        await coordinator.open()
        yield coordinator
    finally:
        await coordinator.aclose()


class Way:
    """Leads to a server. It can be broken after a command has gone there, and before its answer has come."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.url = ""
        self.loses_answers = 0
        self.lost = 0

    @contextlib.asynccontextmanager
    async def open(self, secure: ssl.SSLContext | None = None) -> AsyncIterator["Way"]:
        listener = await asyncio.start_server(self._carry, "127.0.0.1", 0, ssl=secure)
        scheme = "redis" if secure is None else "rediss"
        self.url = f"{scheme}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with listener:
            yield self

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._to)
        with contextlib.suppress(OSError):
            async with asyncio.TaskGroup() as group:
                there = group.create_task(self._pass_on(reader, forth, False))
                await self._pass_on(back, writer, True)
                there.cancel()
        forth.close()
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        while data := await reader.read(65536):
            if is_answer and self.loses_answers and b"OK" not in data:
                self.loses_answers -= 1
                self.lost += 1
                return
            writer.write(data)
        writer.close()


async def test_a_restarted_redis_has_lost_nothing(server: RedisServer) -> None:
    async with opened(server.url) as coordinator:
        leases = await leased(coordinator, "w", "a", "b")
        assert await coordinator.facts.write("w", 1, told(leases["a"], STARTED)) == frozenset()
        async with asyncio.TaskGroup() as group:
            server.kill()
            flush_in_background = group.create_task(coordinator.facts.write("w", 2, told(leases["b"], STARTED)))
            waiting = group.create_task(coordinator.updates.poll(("0-0", "0-0", "0-0"), wait=60))
            posting = group.create_task(coordinator.work.submit(jobs("a", "c"), retry_failed=False))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(server.start)
            assert await flush_in_background == frozenset()
            assert await posting == {}
            await coordinator.updates.publish(b"again")
            assert (await waiting).published == (b"again",)
        assert await coordinator.facts.read("a") == await coordinator.facts.read("b") == (STARTED,)
        assert [lease.job.key for lease in await coordinator.work.lease("v", 9, ttl=LONG, wait=0)] == ["c"]


async def test_an_outage_of_redis_is_reported_once_and_so_is_its_end(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(server.url) as coordinator, asyncio.TaskGroup() as group:
        caplog.clear()
        server.kill()
        waiting = [group.create_task(coordinator.work.pending_count()) for _ in range(3)]
        while "does not answer" not in caplog.text:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
        assert [await each for each in waiting] == [0, 0, 0]
    away, back = caplog.messages
    assert "does not answer (Error" in away
    assert re.search(r"waiting for it for up to \d+ s\.$", away)
    assert back == f"Redis at {server.url} answers again."


async def test_workers_keep_their_leases_during_a_redis_outage(server: RedisServer) -> None:
    async with opened(server.url) as one, opened(server.url) as other:
        lease = (await leased(one, "w", "a", ttl=SHORT))["a"]
        await one.calls.claim("call", "w")
        server.kill()
        await asyncio.sleep(1.2 * SHORT)
        await asyncio.to_thread(server.start)
        assert await other.calls.claim("call", "v") is False
        assert await other.work.lease("v", 1, ttl=SHORT, wait=0) == []
        assert await one.work.renew("w", {"a": lease.token}, ttl=SHORT) == frozenset()
        assert await one.facts.write("w", 1, told(lease, STARTED)) == frozenset()
        assert [found.facts for found in await other.work.lease("v", 1, ttl=SHORT, wait=60)] == [(STARTED,)]
        assert await one.work.renew("w", {"a": lease.token}, ttl=SHORT) == {"a"}


async def test_leases_returned_around_a_redis_outage_are_free(server: RedisServer) -> None:
    async with opened(server.url) as coordinator:
        lease = (await leased(coordinator, "w", "a", "b", ttl=SHORT))["a"]
        await coordinator.work.release("w", {"a": lease.token})
        await asyncio.sleep(1.2 * SHORT)
        assert [found.job.key for found in await coordinator.work.lease("v", 9, ttl=SHORT, wait=0)] == ["a"]


async def test_a_lasting_redis_outage_is_an_error(server: RedisServer) -> None:
    secret = server.url.replace("redis://", "redis://:pass%20word@")
    coordinator = RedisCoordinator(secret, "run", retry_seconds=0.2)
    server.kill()
    for call in (
        coordinator.open(),
        coordinator.work.pending_count(),
        coordinator.updates.poll(("0-0", "0-0", "0-0"), wait=60),
        runs_known(secret, retry_seconds=0.1),
    ):
        with pytest.raises(StoreError, match=r"could not be reached for 0.* s.*Check that it is running") as caught:
            await call
        assert f"redis://127.0.0.1:{server.port}" in str(caught.value)
        assert "word" not in str(caught.value)
    await coordinator.aclose()


async def test_a_write_whose_reply_was_lost_is_not_repeated(redis_server: RedisServer) -> None:
    run, port = uuid.uuid4().hex, redis_server.port
    async with Way(port).open() as way, opened(way.url, run) as coordinator, opened(redis_server.url, run) as other:
        first = (await leased(coordinator, "w", "first"))["first"]  # so that the server knows all scripts
        await coordinator.facts.write("w", 1, told(first, STARTED))
        await coordinator.documents.compare_and_set("x", None, b"0")
        await coordinator.updates.publish(b"first")
        await coordinator.calls.reserve_rate("first", interval=0, ahead=0)
        await other.work.submit(jobs("a", "b", "c"), retry_failed=False)
        after = await coordinator.updates.position()
        way.loses_answers = 1
        leases = await coordinator.work.lease("w", 2, ttl=LONG, wait=0)
        assert [(lease.job.key, lease.attempts) for lease in leases] == [("a", 1), ("b", 1)]
        way.loses_answers = 1
        assert await coordinator.facts.write("w", 2, told(leases[0], STARTED)) == frozenset()
        way.loses_answers = 1
        assert await coordinator.documents.compare_and_set("x", b"0", b"1") is True
        way.loses_answers = 1
        await coordinator.updates.publish(b"once")
        way.loses_answers = 1
        assert await coordinator.calls.reserve_rate("t", interval=1_000, ahead=0) == 0
        assert way.lost == 5
        assert await other.facts.read("a") == (STARTED,)
        assert (await other.updates.poll(after, wait=0)).published == (b"once",)
        assert 0 < await other.calls.reserve_rate("t", interval=1_000, ahead=0) <= 1_000
        assert [lease.job.key for lease in await other.work.lease("v", 9, ttl=LONG, wait=0)] == ["c"]


async def test_a_script_missing_on_redis_is_loaded_again(server: RedisServer) -> None:
    async with opened(server.url) as coordinator, Redis.from_url(server.url) as client:
        await coordinator.documents.compare_and_set("x", None, b"1")
        await client.script_flush()
        assert await coordinator.documents.compare_and_set("x", b"1", b"2") is True


async def test_a_redis_replica_is_waited_for_until_it_is_the_primary(server: RedisServer) -> None:
    async with opened(server.url) as coordinator, Redis.from_url(server.url) as client, asyncio.TaskGroup() as group:
        await client.replicaof("127.0.0.1", "1")
        swapping = group.create_task(coordinator.documents.compare_and_set("x", None, b"1"))
        await asyncio.sleep(0.1)
        assert not swapping.done()
        await client.replicaof("NO", "ONE")
        assert await swapping is True


async def test_a_run_on_a_redis_replica_is_told_so(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async with Redis.from_url(server.url) as client:
        await client.replicaof("127.0.0.1", "1")
    coordinator = RedisCoordinator(server.url, "run", retry_seconds=0.2)
    await coordinator.open()
    assert "is a replica, which can be read but not written. A run writes: name its primary" in caplog.text
    with pytest.raises(StoreError, match=r"was a read-only replica for 0.2 s.*name its primary"):
        await coordinator.work.submit(jobs("a"), retry_failed=False)
    assert await runs_known(server.url) == []
    await coordinator.aclose()


@pytest.mark.parametrize(("scheme", "advice"), [("redis", "comes back.$"), ("rediss", "use redis://.$")])
async def test_a_server_that_says_nothing_is_no_redis_server(scheme: str, advice: str) -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as listener:
        url = f"{scheme}://127.0.0.1:{listener.sockets[0].getsockname()[1]}?socket_connect_timeout=0.1"
        coordinator = RedisCoordinator(url, "run", retry_seconds=0.2)
        with pytest.raises(StoreError, match=rf"could not be reached for 0.2 s \(\w.*{advice}"):
            await coordinator.open()
        await coordinator.aclose()


async def test_a_redis_out_of_memory_is_reported_at_once(server: RedisServer) -> None:
    async with opened(server.url) as coordinator, Redis.from_url(server.url) as client:
        await client.config_set("maxmemory", "1mb")
        with pytest.raises(StoreError, match=r"is out of memory.*Stored data is safe"):
            await coordinator.work.submit(jobs(*map(str, range(10))), retry_failed=False)


async def test_a_redis_with_a_full_disk_is_reported_at_once() -> None:
    with redis_of_its_own() as server:
        async with opened(server.url) as coordinator, Redis.from_url(server.url) as client:
            await client.config_set("save", "3600 1")
            await client.set("something", "to save")
            shutil.rmtree(server.folder)
            await client.bgsave()
            while (await client.info("persistence"))["rdb_last_bgsave_status"] == "ok":
                await asyncio.sleep(0.01)
            with pytest.raises(StoreError, match=r"cannot write to its disk .*Free disk space"):
                await coordinator.documents.compare_and_set("x", None, b"1")


async def test_a_wrong_redis_password_is_reported_at_once() -> None:
    with redis_of_its_own("--requirepass", "pass word") as server:
        for user in ("", ":wrong@", "me:pass%20word@"):
            with pytest.raises(StoreError, match=r"rejected the credentials.*Check user and password") as caught:
                await RedisCoordinator(server.url.replace("redis://", f"redis://{user}"), "run").open()
            assert "wrong" not in str(caught.value).split("(")[0]
        for url in (server.url.replace("redis://", "redis://:pass%20word@"), f"unix://:pass%20word@{server.unix_path}"):
            async with opened(url) as coordinator:
                assert await coordinator.work.pending_count() == 0


async def test_missing_redis_permissions_are_reported_at_once(server: RedisServer) -> None:
    async with Redis.from_url(server.url) as client:
        await client.acl_setuser("guest", enabled=True, passwords=["+secret"], commands=["+ping", "+config"])
    async with opened(server.url.replace("redis://", "redis://guest:secret@")) as coordinator:
        with pytest.raises(StoreError, match="denied a command"):
            await coordinator.work.pending_count()
        with pytest.raises(StoreError, match=r"denied a command \(User guest has no permissions"):
            await coordinator.documents.read("x")
    async with Redis.from_url(server.url) as client:
        await client.acl_setuser("guest", enabled=True, passwords=["+secret"], commands=["+@all", "-hset"], keys=["*"])
    async with opened(server.url.replace("redis://", "redis://guest:secret@")) as coordinator:
        with pytest.raises(StoreError, match=r"denied a command \(.*'hset' command.*Grant this user"):
            await coordinator.work.renew("a", {}, ttl=1.0)


async def test_a_missing_redis_database_is_reported_at_once(redis_server: RedisServer) -> None:
    with pytest.raises(StoreError, match="has no such database"):
        await RedisCoordinator(f"{redis_server.url}/99", "run").open()


async def test_a_permit_whose_reply_was_lost_is_neither_acquired_nor_released_twice(redis_server: RedisServer) -> None:
    run, port = uuid.uuid4().hex, redis_server.port
    async with Way(port).open() as way, opened(way.url, run) as coordinator:
        await coordinator.work.renew("w", {}, ttl=LONG)
        assert await coordinator.calls.acquire_permit("tool", "w", 3) is True  # so that the server knows the scripts
        await coordinator.calls.release_permit("other", "w")
        way.loses_answers = 1
        assert await coordinator.calls.acquire_permit("tool", "w", 3) is True
        assert [await coordinator.calls.acquire_permit("tool", "w", 3) for _ in range(2)] == [True, False]
        way.loses_answers = 1
        await coordinator.calls.release_permit("tool", "w")
        assert way.lost == 2
        assert [await coordinator.calls.acquire_permit("tool", "w", 3) for _ in range(2)] == [True, False]


@dataclass(frozen=True)
class Certificate:
    """A certificate that signs itself, in files."""

    file: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, name: str, subject: str = "IP:127.0.0.1") -> "Certificate":
        made = cls(folder / f"{name}.pem", folder / f"{name}.key")
        asked = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"]
        files = ["-addext", f"subjectAltName={subject}", "-keyout", str(made.key), "-out", str(made.file)]
        subprocess.run(["openssl", "req", "-x509", *asked, *files], check=True, capture_output=True)
        return made

    def context(self, client: "Certificate | None" = None) -> ssl.SSLContext:
        """Of a server. `client`: that clients must have."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        if client is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(client.file)
        return context


async def test_a_tls_redis_is_trusted_only_by_its_certificate(redis_server: RedisServer, tmp_path: Path) -> None:
    own, other = Certificate.make(tmp_path, "own"), Certificate.make(tmp_path, "other")
    async with Way(redis_server.port).open(own.context()) as way:
        for query in ("", f"?ssl_ca_certs={other.file}"):
            with pytest.raises(StoreError, match=r"did not complete the TLS handshake .* add \?ssl_ca_certs="):
                await RedisCoordinator(f"{way.url}{query}", "run").open()
        async with opened(f"{way.url}?ssl_ca_certs={own.file}", uuid.uuid4().hex) as coordinator:
            assert await coordinator.work.pending_count() == 0


async def test_a_tls_redis_with_another_name_is_not_trusted(redis_server: RedisServer, tmp_path: Path) -> None:
    own = Certificate.make(tmp_path, "own", "DNS:elsewhere")
    async with Way(redis_server.port).open(own.context()) as way:
        with pytest.raises(StoreError, match="Use the host name that its certificate has"):
            await RedisCoordinator(f"{way.url}?ssl_ca_certs={own.file}", "run").open()


async def test_a_redis_that_asks_for_a_client_certificate_gets_it(redis_server: RedisServer, tmp_path: Path) -> None:
    own, client = Certificate.make(tmp_path, "own"), Certificate.make(tmp_path, "client")
    async with Way(redis_server.port).open(own.context(client)) as way:
        trusted = f"{way.url}?ssl_ca_certs={own.file}"
        with pytest.raises(StoreError, match="key of ssl_keyfile does not belong to the certificate"):
            await RedisCoordinator(f"{trusted}&ssl_certfile={client.file}&ssl_keyfile={own.key}", "run").open()
        url = f"{trusted}&ssl_certfile={client.file}&ssl_keyfile={client.key}"
        async with opened(url, uuid.uuid4().hex) as coordinator:
            assert await coordinator.work.pending_count() == 0


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("rediss://host?ssl_ca_certs=/no/ca.pem", r"there is no '/no/ca.pem' \(ssl_ca_certs\)"),
        ("rediss+sentinel://host/main?ssl_keyfile=/no/key.pem", r"there is no '/no/key.pem' \(ssl_keyfile\)"),
        ("rediss://:secret@host?ssl_ca_cert=/no/ca.pem", "redis-py does not know: ssl_ca_cert"),
        ("redis://host?ssl_ca_certs=/no/ca.pem", "TLS has the scheme rediss://"),
        ("redis://:secret@host:6379/reviews", "is not a Redis URL.*HOST:PORT/DATABASE"),
        ("redis+sentinel://:secret@host/main/reviews", "is not a Redis URL.*SERVICE/DATABASE"),
    ],
)
def test_wrong_options_of_a_redis_url_are_named_before_anything_is_sent(url: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem) as raised:
        RedisCoordinator(url, "run")
    assert "secret" not in str(raised.value)


ANSWERS = {
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n": (
        r"does not respond like a Redis server.*Check host and port"
    ),
    b"-MOVED 3999 127.0.0.1:6381\r\n": r"is a node of a Redis Cluster.*Use a standalone server",
    b"-ERR unknown command\r\n": (
        r"rejected a command \(unknown command\).*Redis 7\.0 or newer, or Valkey 7\.2 or newer"
    ),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_server_that_is_not_redis_is_reported_at_once(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(answer * (data.count(b"\r\n*") + 1))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(StoreError, match=ANSWERS[answer]):
            await RedisCoordinator(f"redis://127.0.0.1:{port}", "run").open()


REFUSED = b"-ERR unknown command\r\n"


def _old_redis(
    version: str, settings: bytes = REFUSED
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A server that answers PING, tells its version, and knows nothing else but perhaps settings."""
    told = f"# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            for command in data.split(b"\r\n*"):
                if b"PING" in command:
                    writer.write(b"+PONG\r\n")
                elif b"INFO" in command:
                    writer.write(b"$%d\r\n%b\r\n" % (len(told), told))
                else:
                    writer.write(settings if b"CONFIG" in command else REFUSED)
        writer.close()

    return serve


@pytest.mark.parametrize("version", ["3.0.504", "6.2.14", "6.9"])
async def test_a_redis_that_is_too_old_is_refused_at_once(version: str) -> None:
    async with await asyncio.start_server(_old_redis(version), "127.0.0.1", 0) as listener:
        url = f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        for _ in range(2):  # it is no better the second time
            with pytest.raises(
                StoreError, match=r"has version \d\.\d\. Redis 7\.0 or newer, or Valkey 7\.2 or newer, is required"
            ):
                await RedisCoordinator(url, "run").open()


@pytest.mark.parametrize("version", ["7.0.0", "8.2.1", "10.0", "unknown"])
@pytest.mark.parametrize("settings", [REFUSED, b"*0\r\n"])
async def test_a_newer_redis_and_one_without_a_version_are_accepted(version: str, settings: bytes) -> None:
    async with await asyncio.start_server(_old_redis(version, settings), "127.0.0.1", 0) as listener:
        coordinator = RedisCoordinator(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}", "run")
        await coordinator.open()
        await coordinator.aclose()


def test_the_docs_say_which_redis_is_needed() -> None:
    said = (Path(__file__).parents[4] / "docs" / "distributed-runs.md").read_text()
    assert REQUIRED_SERVER.removesuffix(", is required.") in said


@pytest.mark.slow
async def test_all_keys_of_a_run_are_in_one_redis_cluster_slot() -> None:
    with redis_of_its_own("--cluster-enabled", "yes") as server:
        async with opened(server.url) as coordinator, Redis.from_url(server.url) as client:
            await client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)  # type: ignore[no-untyped-call]
            lease = (await leased(coordinator, "w", "a"))["a"]
            assert await coordinator.facts.write("w", 1, [*told(lease, STARTED), ends(lease)]) == frozenset()
            assert await coordinator.documents.compare_and_set("x", None, b"1") is True
            keys = [key async for key in client.scan_iter("batch-agent:{*")]
            assert len(keys) > 3
            assert len({await client.cluster("KEYSLOT", key) for key in keys}) == 1
            await coordinator.delete_run()
            assert await client.dbsize() == 0
