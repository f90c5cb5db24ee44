"""Object stores on a real S3-compatible server (moto), with faults, kills and another machine."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
import s3fs
from tests.support.s3_server import Fault, S3Server, s3_server

from batch_agent import BatchAgent, SpecError
from batch_agent.data import read_inputs
from batch_agent.objects import remote_checkpoint, remote_results
from batch_agent.testing import ScriptedBackend, say

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as found:
        yield found


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A new bucket. Clients of earlier tests, which fsspec keeps, know another server."""
    s3fs.S3FileSystem.clear_instance_cache()
    server.rule = lambda method, path: None
    for name, value in {**server.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{os.urandom(6).hex()}"
    server.make_bucket(name)
    return name


def rows_of(bucket: str, folder: str = "out") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list(read_inputs(f"s3://{bucket}/{folder}/*.jsonl"))  # type: ignore[arg-type]
    return found


def manifest_of(bucket: str, folder: str = "out") -> dict[str, Any]:
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


async def test_a_run_reads_and_writes_a_bucket(bucket: str, tmp_path: Path) -> None:
    for part in range(2):
        path = tmp_path / f"{part}.parquet"
        rows = f"SELECT range + {20 * part} AS id, 'text ' || range AS text FROM range(20)"
        duckdb.sql(rows).write_parquet(str(path))
        s3fs.S3FileSystem().put_file(str(path), f"{bucket}/in/{part}.parquet")
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
    monkeypatch.setattr(remote_results, "_PART_BYTES", 2000)
    monkeypatch.setattr(remote_checkpoint, "_INTERVAL", 0.05)
    lines = b"".join(b'{"id": %d}\n' % number for number in range(100))
    s3fs.S3FileSystem().pipe_file(f"{bucket}/in/rows.jsonl", lines)
    server.rule = every(5, fault, "PUT", "GET", "DELETE")
    options: dict[str, Any] = {
        "task": "{id}",
        "backend": ScriptedBackend(lambda request: say("ok")),
        "out": f"s3://{bucket}/out/",
        "checkpoint_dir": f"s3://{bucket}/checkpoint/",
    }
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
from batch_agent.objects import remote_checkpoint, remote_results
from batch_agent.testing import ScriptedBackend, say

remote_results._PART_BYTES = 3000
remote_checkpoint._INTERVAL, remote_checkpoint._MAX_TIME_SHARE = 0.1, 0.9
bucket, ledger, agents = sys.argv[1], sys.argv[2], int(sys.argv[3])


def reply(request):
    with open(ledger, "a") as file:
        file.write(request.messages[-1].text + "\\n")
    return say("ok")


async def main():
    backend = ScriptedBackend(reply, seconds=float(sys.argv[4]))
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


class Machine:
    """Runs the program with a local disk of its own."""

    def __init__(self, bucket: str, folder: Path, seconds: float = 0.05) -> None:
        """`seconds`: that each request takes."""
        folder.mkdir()
        self._environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder)}
        self._arguments = [sys.executable, "-c", PROGRAM, bucket, str(folder.parent / "paid.txt"), str(AGENTS)]
        self._arguments.append(str(seconds))

    @contextmanager
    def start(self) -> "Iterator[subprocess.Popen[bytes]]":
        """Ends the program, too, if it is still running."""
        with subprocess.Popen(self._arguments, env=self._environment, stderr=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()
                process.communicate()

    def run(self) -> str:
        ended = subprocess.run(self._arguments, env=self._environment, capture_output=True, timeout=100, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stderr.decode()


AGENTS = 200
IN_FLIGHT = 2 * 4
"""Requests in flight at a kill, and those whose facts were about to be written."""


def paid(tmp_path: Path) -> list[str]:
    found = tmp_path / "paid.txt"
    return found.read_text().splitlines() if found.exists() else []


def wait_for(condition: Callable[[], bool], seconds: float = 100) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the program did not get there"
        time.sleep(0.01)


class Reader(threading.Thread):
    """Reads all parts again and again, as another program does."""

    def __init__(self, bucket: str) -> None:
        super().__init__()
        self._folder = f"{bucket}/out"
        self._filesystem = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
        self._is_over = threading.Event()
        self.problems: list[str] = []
        self.reads = 0

    def run(self) -> None:
        while not self._is_over.wait(0.02):
            seen: Counter[int] = Counter()
            for name in self._filesystem.glob(f"{self._folder}/part-*"):
                try:
                    data = self._filesystem.cat_file(name)
                except FileNotFoundError:  # deleted since it was listed
                    continue
                if not data.endswith(b"\n"):
                    self.problems.append(f"{name} is not whole")
                seen.update(json.loads(line)["index"] for line in data.splitlines())
            self.problems += [f"row {index} is there {count} times" for index, count in seen.items() if count > 1]
            self.reads += 1

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def test_a_killed_run_continues_on_another_machine_and_readers_see_each_row_once(bucket: str, tmp_path: Path) -> None:
    reader = Reader(bucket)
    reader.start()
    since_upload = 0
    try:
        for round_ in range(2):
            before = len(paid(tmp_path))
            with Machine(bucket, tmp_path / f"machine-{round_}", seconds=2).start():
                wait_for(lambda before=before: len(paid(tmp_path)) >= before + 6)  # type: ignore[misc]
                marked = len(paid(tmp_path))
                for _ in range(2):  # the second upload that ends after the mark began after it
                    latest = newest_data(bucket)
                    wait_for(lambda latest=latest: newest_data(bucket) > latest)  # type: ignore[misc]
            since_upload += len(paid(tmp_path)) - marked + IN_FLIGHT
        notice = Machine(bucket, tmp_path / "last").run()
    finally:
        reader.stop()
    assert "did not end: continuing from what it uploaded" in notice
    assert reader.problems == []
    assert reader.reads > 10
    assert Counter(row["input"]["id"] for row in rows_of(bucket)) == Counter(range(AGENTS))
    manifest = manifest_of(bucket)
    assert manifest["complete"]
    assert manifest["rows"] == AGENTS
    assert len(paid(tmp_path)) <= AGENTS + since_upload


def newest_data(bucket: str) -> str:
    filesystem = s3fs.S3FileSystem()
    filesystem.invalidate_cache()
    return max(filesystem.glob(f"{bucket}/checkpoint/data-*"), default="")


def test_on_the_same_machine_nothing_that_was_stored_is_paid_again(bucket: str, tmp_path: Path) -> None:
    machine = Machine(bucket, tmp_path / "machine")
    with machine.start():
        wait_for(lambda: len(paid(tmp_path)) >= 100)
    machine.run()
    assert len(paid(tmp_path)) - AGENTS <= IN_FLIGHT
    assert Counter(row["input"]["id"] for row in rows_of(bucket)) == Counter(range(AGENTS))


def test_of_two_runs_with_one_checkpoint_the_later_one_goes_on(bucket: str, tmp_path: Path) -> None:
    with Machine(bucket, tmp_path / "first", seconds=2).start() as first:
        wait_for(lambda: len(paid(tmp_path)) >= 8)
        Machine(bucket, tmp_path / "second").run()
        _, errors = first.communicate(timeout=100)
    assert first.returncode == 1
    losses = (b"Another run has taken over the checkpoint", b"is being written by another run, which started later")
    assert any(each in errors for each in losses)  # which of the two it finds first depends on its next upload
    assert Counter(row["input"]["id"] for row in rows_of(bucket)) == Counter(range(AGENTS))


@pytest.mark.parametrize(
    ("option", "url", "problem"),
    [
        ("inputs", "s3://no-such-bucket/in.jsonl", "Create the bucket 'no-such-bucket' first"),
        ("inputs", "s3://no-such-bucket/in/*.jsonl", "Create the bucket 'no-such-bucket' first"),
        ("out", "s3://no-such-bucket/out/", "Create the bucket 'no-such-bucket' first"),
        ("out", "s3://no-such-bucket/out.jsonl", "Create the bucket 'no-such-bucket' first"),
        ("checkpoint_dir", "s3://no-such-bucket/x", "Create the bucket 'no-such-bucket' first"),
    ],
)
async def test_a_missing_bucket_is_named_before_anything_is_sent(
    bucket: str, option: str, url: str, problem: str
) -> None:
    backend = ScriptedBackend(lambda request: say("ok"))
    options: dict[str, Any] = {"inputs": [{"id": 1}], "task": "{id}", "backend": backend, option: url}
    with pytest.raises(SpecError, match=problem):
        await BatchAgent.run(**options)
    assert backend.requests == []


async def test_missing_credentials_are_explained(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs.S3FileSystem.clear_instance_cache()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SpecError, match=r"there are no credentials\. Set AWS_ACCESS_KEY_ID"):
        read_inputs(f"s3://{bucket}/in.jsonl")
