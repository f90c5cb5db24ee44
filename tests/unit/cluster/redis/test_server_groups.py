"""Several Redis servers: a primary with a replica that Sentinel watches, and a Redis Cluster, which is refused."""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, RedisError
from tests.support.guarded_process import GuardedProcess
from tests.support.redis_server import AOF, BINARY, RedisServer, redis_of_its_own

from batch_agent import BatchAgent, BatchSpec, SpecError, StoreError
from batch_agent.cluster.redis.redis_coordinator import RedisCoordinator, runs_known
from batch_agent.cluster.redis.redis_pool import open_pool
from batch_agent.core.requests import Request
from batch_agent.testing import ScriptedBackend, say

_PATIENCE = 60.0
_PORTS = range(20_000, 32_000)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def answers(port: int) -> bool:
    try:
        with Redis(port=port, socket_timeout=1) as client:
            return bool(client.ping())
    except RedisError:
        return False


@contextmanager
def sentinel(primary: RedisServer, folder: Path) -> Iterator[str]:
    """Watches the primary `main`, and replaces it with its replica if it is gone. Its address."""
    for port in random.SystemRandom().sample(_PORTS, 20):
        lines = [
            f"port {port}",
            f"sentinel monitor main 127.0.0.1 {primary.port} 1",
            "sentinel down-after-milliseconds main 500",
            "sentinel failover-timeout main 3000",
            f"logfile {folder / 'sentinel.log'}",
        ]
        file = folder / "sentinel.conf"
        file.write_text("\n".join(lines) + "\n")
        process = GuardedProcess(BINARY, file, "--sentinel")
        try:
            until(lambda process=process, port=port: process.has_ended() or answers(port))  # type: ignore[misc]
            if not process.has_ended():
                yield f"127.0.0.1:{port}"
                return
        finally:
            process.kill()
    raise AssertionError("all ports are taken")


@contextmanager
def replicated(folder: Path) -> Iterator[tuple[RedisServer, RedisServer, str]]:
    """A primary, its replica, and the URL that finds whichever is the primary."""
    with redis_of_its_own(*AOF) as primary, redis_of_its_own(*AOF) as replica:
        with Redis(port=replica.port) as client:
            client.replicaof("127.0.0.1", primary.port)
            until(lambda: client.info("replication")["master_link_status"] == "up")
        with sentinel(primary, folder) as address:
            port = int(address.rpartition(":")[2])
            with Redis(port=port) as client:
                until(lambda: len(client.sentinel_slaves("main")) == 1)
            yield primary, replica, f"redis+sentinel://{address}/main/0"


@pytest.mark.slow
async def test_a_run_continues_on_the_replica_that_sentinel_makes_the_primary(tmp_path: Path) -> None:
    with replicated(tmp_path) as (primary, replica, url):
        killed = asyncio.Event()

        async def answer(request: Request) -> Any:
            text = str(getattr(request.messages[0], "text", ""))
            if int(text) >= 10:
                await killed.wait()
            return say(f"about {text}")

        found: dict[int, str] = {}
        stream = BatchAgent.stream(
            task="{it}", inputs=[{"it": str(n)} for n in range(40)], backend=ScriptedBackend(answer), store=url, lease=3
        )
        async with stream, asyncio.timeout(_PATIENCE):
            async for result in stream:
                assert result.index not in found, "a doubled result"
                found[result.index] = result.output
                if len(found) == 10:
                    await asyncio.to_thread(primary.kill)
                    killed.set()
        assert found == {n: f"about {n}" for n in range(40)}
        with Redis(port=replica.port) as client:
            assert client.info("replication")["role"] == "master"
        assert len(await runs_known(url)) == 1


async def test_a_service_that_sentinel_does_not_know_is_an_error(tmp_path: Path) -> None:
    with redis_of_its_own() as primary, sentinel(primary, tmp_path) as address:
        coordinator = RedisCoordinator(f"redis+sentinel://127.0.0.1:1,{address}/other/0", "run", retry_seconds=0.2)
        with pytest.raises(StoreError, match=r"could not be reached for 0.2 s \(No master found for 'other'"):
            await coordinator.open()


def test_a_sentinel_url_names_hosts_service_database_and_credentials() -> None:
    pool: Any = open_pool("rediss+sentinel://me:pass%2Fword@one,two:27000/main/3?sentinel_password=theirs")
    assert pool.service_name == "main"
    assert (pool.connection_kwargs["db"], pool.connection_kwargs["password"]) == (3, "pass/word")
    known = [each.connection_pool for each in pool.sentinel_manager.sentinels]
    asked = [(each.connection_kwargs["host"], each.connection_kwargs["port"]) for each in known]
    assert asked == [("one", 26379), ("two", 27000)]
    assert {each.connection_kwargs["password"] for each in known} == {"theirs"}
    assert "SSL" in pool.connection_class.__name__
    assert all("SSL" in each.connection_class.__name__ for each in known)


@pytest.mark.parametrize(
    "url", ["redis+sentinel://host:26379", "redis+sentinel:///main", "redis+sentinel://h:x/main/0"]
)
def test_an_incomplete_sentinel_url_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match=r"is not a Redis URL.*HOST:PORT,HOST:PORT/SERVICE/DATABASE"):
        open_pool(url)


@pytest.mark.parametrize(
    "url",
    [f"redis://{'a' * 64}", "rediss://me:secret@a..b:6379/0", f"redis+sentinel://host,{'a' * 64}.com:26379/main/0"],
)
def test_a_host_that_dns_cannot_have_is_refused_at_once(url: str) -> None:
    with pytest.raises(SpecError, match=r"redis.*: the parts of a host name, between its dots, have 1 to 63") as caught:
        open_pool(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://localhost.", "redis://[::1]:6379", "unix:///tmp/redis.sock", "redis://"])
def test_other_hosts_are_left_to_the_resolver(url: str) -> None:
    open_pool(url)


@pytest.mark.slow
async def test_a_redis_cluster_is_refused_with_what_to_use() -> None:
    options = ("--cluster-enabled", "yes", "--cluster-port", "0")
    with redis_of_its_own(*options) as one, redis_of_its_own(*options) as other:
        with Redis(port=one.port) as client, Redis(port=other.port) as second:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 8191)
            second.execute_command("CLUSTER ADDSLOTSRANGE", 8192, 16383)
            client.execute_command("CLUSTER MEET", "127.0.0.1", other.port)
            until(lambda: client.info("cluster")["cluster_enabled"] == 1 and "state:ok" in state(client))
        with pytest.raises(StoreError, match=r"is a node of a Redis Cluster\. .*redis\+sentinel://"):
            await RedisCoordinator(one.url, uuid.uuid4().hex).open()
    with pytest.raises(SpecError, match=r"begins with 'redis\+cluster'\. For several servers, use redis\+sentinel"):
        BatchSpec.of(task="{it}", inputs=[], store="redis+cluster://host:6379")


def state(client: Any) -> str:
    found = client.execute_command("CLUSTER INFO")
    return str(found).replace("': '", ":").replace("cluster_", "")
