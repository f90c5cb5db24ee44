"""Object stores on a real S3-compatible server (moto), with faults, kills and another machine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.s3_server import Fault, S3Server, s3_server

from batch_agent import BatchAgent, SpecError
from batch_agent.data import read_inputs
from batch_agent.objects import checkpoint_copy, remote_results
from batch_agent.testing import ScriptedBackend, say

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as found:
        yield found


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A new bucket. Clients of earlier tests, which fsspec keeps, know another server."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    server.rule = lambda method, path: None
    for name, value in {**server.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{os.urandom(6).hex()}"
    s3fs.S3FileSystem().mkdir(name)
    return name


def rows_of(bucket: str, folder: str = "out") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list(read_inputs(f"s3://{bucket}/{folder}/*.jsonl"))  # type: ignore[arg-type]
    return found


def manifest_of(bucket: str, folder: str = "out") -> dict[str, Any]:
    import s3fs

    filesystem = s3fs.S3FileSystem()
    filesystem.invalidate_cache()
    found: dict[str, Any] = json.loads(filesystem.cat_file(f"{bucket}/{folder}/_manifest.json"))
    return found


def every(number: int, fault: Fault, *methods: str) -> Any:
    """Rule: each request of these methods with this number has the fault."""
    counted: Counter[str] = Counter()
    lock = threading.Lock()

    def rule(method: str, path: str) -> Fault:
        if method not in methods:
            return None
        with lock:
            counted[method] += 1
            return fault if counted[method] % number == 0 else None

    return rule


async def test_a_run_reads_and_writes_a_bucket(bucket: str) -> None:
    import duckdb
    import s3fs

    duckdb.sql("SELECT range AS id, 'text ' || range AS text FROM range(40)").write_parquet("/dev/stdout") if 0 else None
    table = duckdb.sql("SELECT range AS id, 'text ' || range AS text FROM range(40)").to_arrow_table()
    import pyarrow.parquet as parquet

    filesystem = s3fs.S3FileSystem()
    for part in range(2):
        with filesystem.open(f"{bucket}/in/{part}.parquet", "wb") as file:
            parquet.write_table(table.slice(part * 20, 20), file)
    results = await BatchAgent.run(
        task="{text}",
        inputs=f"s3://{bucket}/in/*.parquet",
        backend=ScriptedBackend(lambda request: say("ok")),
        out=f"s3://{bucket}/out/",
        checkpoint_dir=f"s3://{bucket}/checkpoint/",
    )
    assert sorted(row["input"]["id"] for row in rows_of(bucket)) == [result.input["id"] for result in results]
    manifest = manifest_of(bucket)
    assert (manifest["complete"], manifest["rows"], manifest["answered"], manifest["failed"]) == (True, 40, 40, 0)
    assert manifest["tokens"].keys() == {"input", "cached", "written", "output"}
    assert sum(part["rows"] for part in manifest["parts"]) == 40


@pytest.mark.parametrize("fault", ["busy", "lost", "slow"])
async def test_faults_of_the_store_lose_and_double_nothing(
    server: S3Server, bucket: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    monkeypatch.setattr(remote_results, "_PART_BYTES", 2000)
    monkeypatch.setattr(checkpoint_copy, "_INTERVAL", 0.05)
    lines = b"".join(b'{"id": %d}\n' % number for number in range(100))
    s3fs.S3FileSystem().pipe_file(f"{bucket}/in/rows.jsonl", lines)
    server.rule = every(3, fault, "PUT", "GET", "DELETE")
    options: dict[str, Any] = dict(
        task="{id}",
        backend=ScriptedBackend(lambda request: say("ok")),
        out=f"s3://{bucket}/out/",
        checkpoint_dir=f"s3://{bucket}/checkpoint/",
    )
    await BatchAgent.run(inputs=f"s3://{bucket}/in/*.jsonl", limit=50, **options)
    await BatchAgent.run(inputs=f"s3://{bucket}/in/*.jsonl", **options)
    server.rule = lambda method, path: None
    assert Counter(row["input"]["id"] for row in rows_of(bucket)) == Counter(range(100))
    manifest = manifest_of(bucket)
    assert manifest["rows"] == 100
    assert {part["name"] for part in manifest["parts"]} == {
        Path(name).name for name in s3fs.S3FileSystem().glob(f"{bucket}/out/part-*")
    }


PROGRAM = """
import asyncio, os, sys
from batch_agent import BatchAgent
from batch_agent.objects import checkpoint_copy, remote_results
from batch_agent.testing import ScriptedBackend, say

remote_results._PART_BYTES = 3000
checkpoint_copy._INTERVAL = 0.1
bucket, ledger, agents = sys.argv[1], sys.argv[2], int(sys.argv[3])


def reply(request):
    with open(ledger, "a") as file:
        file.write(request.messages[-1].text + "\\n")
    return say("ok")


async def main():
    backend = ScriptedBackend(reply, delay=float(sys.argv[4]))
    await BatchAgent.run(
        task="{id}",
        inputs=[{"id": number} for number in range(agents)],
        backend=backend,
        out=f"s3://{bucket}/out/",
        checkpoint_dir=f"s3://{bucket}/checkpoint/",
        max_inflight=4,
    )


asyncio.run(main())
"""
