"""Object stores in memory (fsspec's): what a URL names, what is written, and what errors say."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from batch_agent import BatchAgent, ErrorKind, Flow, RunStopped, SpecError
from batch_agent.core.errors import StoreError
from batch_agent.core.results import AgentResult
from batch_agent.core.spec import BatchSpec
from batch_agent.data import check_output_path, open_results, read_inputs
from batch_agent.data import input_files as files
from batch_agent.data.row_iterators import ThreadIterator
from batch_agent.objects import remote_checkpoint, remote_results, store_client
from batch_agent.objects.part_folder import PartFolder, Totals
from batch_agent.objects.remote_checkpoint import RemoteCheckpoint, download_checkpoint
from batch_agent.objects.store_client import StoreClient, is_transient
from batch_agent.schedule.retry import Backoff
from batch_agent.testing import ScriptedBackend, say

MEMORY: Any = fsspec.filesystem("memory")


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(store_client, "_BACKOFF", Backoff(0.0, 0.0))
    MEMORY.store.clear()
    MEMORY.pseudo_dirs[:] = [""]
    yield
    MEMORY.store.clear()


def backend() -> ScriptedBackend:
    return ScriptedBackend(lambda request: say("ok"))


def names(folder: str) -> list[str]:
    return [name.rpartition("/")[2] for name in sorted(MEMORY.find(folder))]


def manifest(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(MEMORY.cat_file(f"{folder}/_manifest.json"))
    return found


def test_a_pattern_an_object_and_a_folder_are_read_as_files_are() -> None:
    MEMORY.pipe_file("/b/in/b.jsonl", b'{"n": 3}\n')
    MEMORY.pipe_file("/b/in/a.jsonl", b'{"n": 1}\n{"n": 2}\n')
    assert read_inputs("memory://b/in/*.jsonl") == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert read_inputs("memory://b/in/b.jsonl") == [{"n": 3}]
    MEMORY.pipe_file("/b/docs/deep/x.md", "grün".encode())
    MEMORY.pipe_file("/b/docs/pixels", b"\0\1")
    notices: list[str] = []
    assert read_inputs("memory://b/docs/", notify=notices.append) == [
        {"path": "deep/x.md", "name": "x.md", "text": "grün"}
    ]
    assert "1 binary file in 'memory://b/docs/' will not be read: pixels." in notices[0]


async def test_a_large_object_is_read_during_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_BYTES", 10)
    MEMORY.pipe_file("/b/in.jsonl", b"".join(b'{"n": %d}\n' % number for number in range(500)))
    rows = read_inputs("memory://b/in.jsonl")
    assert isinstance(rows, ThreadIterator)
    assert [row["n"] async for row in rows] == list(range(500))


def test_a_url_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(SpecError, match=r"no object matches 'memory://b/\*\.csv'"):
        read_inputs("memory://b/*.csv")
    with pytest.raises(SpecError, match=r"gs://b/x\.csv' needs a package: pip install 'batch-agent\[gcs\]'"):
        read_inputs("gs://b/x.csv")
    with pytest.raises(SpecError, match="use SqlQuery"):
        read_inputs("postgresql://host/db.csv")


@pytest.mark.parametrize("inputs", ["memory://b/x/*.jsonl", "memory://b/x/", "memory://b/x/part-00000.jsonl"])
def test_results_may_not_be_among_the_inputs_of_a_bucket(inputs: str) -> None:
    with pytest.raises(SpecError, match="is among the inputs"):
        check_output_path(inputs, "memory://b/x/", "--out")
    check_output_path(inputs, "memory://b/y/", "--out")
    check_output_path(inputs, Path("x.jsonl"), "--out")


async def run(inputs: int = 3, **options: Any) -> list[AgentResult]:
    results: list[AgentResult] = await BatchAgent.run(
        **{"task": "{n}", "inputs": [{"n": n} for n in range(inputs)], "backend": backend(), **options}
    )
    return results


async def test_a_folder_gets_parts_and_a_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_results, "_PART_BYTES", 1)
    await run(20, out="memory://b/out/")
    found = manifest("/b/out")
    assert (found["complete"], found["rows"], found["answered"], found["failed"]) == (True, 20, 20, 0)
    assert [part["name"] for part in found["parts"]] == names("/b/out")[1:]
    rows: Any = read_inputs("memory://b/out/*.jsonl")
    assert sorted(row["input"]["n"] for row in rows) == list(range(20))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
async def test_a_pattern_chooses_the_format_of_the_parts(suffix: str) -> None:
    await run(out=f"memory://b/out/*.{suffix}")
    rows: Any = read_inputs(f"memory://b/out/part-*.{suffix}")
    assert sorted(int(row["input.n"]) for row in rows) == [0, 1, 2]


async def test_the_parts_of_an_earlier_run_are_replaced_and_other_objects_are_kept() -> None:
    for name in ("notes.jsonl", "deep/part-00000-0123abcd.jsonl"):
        MEMORY.pipe_file(f"/b/out/{name}", b"mine")
    await run(9, out="memory://b/out/")
    await run(2, out="memory://b/out/")
    assert manifest("/b/out")["rows"] == 2
    rows: Any = read_inputs("memory://b/out/part-*.jsonl")
    assert len(rows) == 2
    assert MEMORY.cat_file("/b/out/notes.jsonl") == MEMORY.cat_file("/b/out/deep/part-00000-0123abcd.jsonl") == b"mine"


async def test_a_run_without_results_leaves_an_empty_manifest() -> None:
    await run(0, out="memory://b/out/")
    assert (manifest("/b/out")["complete"], manifest("/b/out")["parts"]) == (True, [])


async def test_one_object_is_written_at_the_end() -> None:
    await run(out="memory://b/one.jsonl")
    assert len(read_inputs("memory://b/one.jsonl")) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("out", ["memory://b/out.jsonl", "memory://b/out/"])
async def test_results_that_cannot_be_uploaded_at_the_end_are_in_the_error(
    monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.setattr(StoreClient, "upload", _fail)
    with pytest.raises(RunStopped, match=r"The store is down\. .*esults .*are in '") as stopped:
        await BatchAgent.run(task="{it}", inputs=["a"], backend=backend(), out=out)
    assert stopped.value.kind is ErrorKind.OUT
    assert [result.output for result in stopped.value.results] == ["ok"]


async def test_an_error_leaves_the_manifest_incomplete_and_the_results_so_far() -> None:
    [result, *_] = await run()

    def fail() -> None:
        with open_results("memory://b/out/") as file:
            file.write(result)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (manifest("/b/out")["complete"], manifest("/b/out")["rows"]) == (False, 1)


async def test_a_run_that_fails_leaves_the_folder_to_one_that_has_written_since() -> None:
    [result, *_] = await run()

    def fail() -> None:
        with open_results("memory://b/out/") as first:
            first.write(result)
            with open_results("memory://b/out/") as second:
                second.write(result)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert manifest("/b/out")["complete"]


def test_a_run_whose_folder_another_run_takes_stops_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("rows")
    first, second = (PartFolder("memory://b/out/", ".jsonl", "out") for _ in range(2))
    first.add(tmp_path / "part", Totals(answered=1))
    second.add(tmp_path / "part", Totals(answered=2))
    with pytest.raises(SpecError, match="is being written by another run, which started later"):
        first.add(tmp_path / "part", Totals(answered=1))
    second.finish()
    assert [part["name"] for part in manifest("/b/out")["parts"]] == names("/b/out")[1:]
    assert manifest("/b/out")["rows"] == 2


def test_a_run_that_begins_to_write_after_one_that_started_later_leaves_it_the_folder(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("rows")
    first, second = (PartFolder("memory://b/out/", ".jsonl", "out") for _ in range(2))
    first.check()
    second.check()
    second.add(tmp_path / "part", Totals(answered=2))
    with pytest.raises(SpecError, match="is being written by another run, which started later"):
        first.add(tmp_path / "part", Totals(answered=1))
    second.finish()
    assert [part["name"] for part in manifest("/b/out")["parts"]] == names("/b/out")[1:]
    assert manifest("/b/out")["rows"] == 2


def test_a_run_that_started_later_takes_the_folder_of_one_that_began_after_its_check(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("rows")
    first, second = (PartFolder("memory://b/out/", ".jsonl", "out") for _ in range(2))
    second.check()
    first.add(tmp_path / "part", Totals(answered=1))
    second.add(tmp_path / "part", Totals(answered=2))
    second.finish()
    assert manifest("/b/out")["rows"] == 2


@pytest.mark.parametrize("writes", [1, 2])
def test_a_run_that_replaces_the_manifest_of_a_later_one_by_accident_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """It has read the manifest before the later run wrote its own."""
    (tmp_path / "part").write_text("rows")
    first, second = (PartFolder("memory://b/out/", ".jsonl", "out") for _ in range(2))
    first.check()
    second.check()
    replace, late = StoreClient.replace, []

    def slow_replace(store: StoreClient, url: str, data: bytes) -> None:
        late.append(url)
        if len(late) == writes:  # the first write begins the manifest, the second adds a part to it
            second.add(tmp_path / "part", Totals(answered=2))
        replace(store, url, data)

    monkeypatch.setattr(StoreClient, "replace", slow_replace)
    first.add(tmp_path / "part", Totals(answered=1))
    second.add(tmp_path / "part", Totals(answered=3))
    with pytest.raises(SpecError, match="is being written by another run, which started later"):
        first.add(tmp_path / "part", Totals(answered=1))
    second.finish()
    assert [part["name"] for part in manifest("/b/out")["parts"]] == names("/b/out")[1:]
    assert manifest("/b/out")["rows"] == 5


def test_of_two_runs_the_later_one_has_the_folder_though_its_clock_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "part").write_text("rows")
    first = PartFolder("memory://b/out/", ".jsonl", "out")
    first.add(tmp_path / "part", Totals(answered=1))
    monkeypatch.setattr("time.time", lambda: 1000.0)
    second = PartFolder("memory://b/out/", ".jsonl", "out")
    second.check()
    second.add(tmp_path / "part", Totals(answered=2))
    with pytest.raises(SpecError, match="is being written by another run, which started later"):
        first.add(tmp_path / "part", Totals(answered=1))
    second.finish()
    assert manifest("/b/out")["rows"] == 2


@pytest.mark.parametrize(("deleted", "said"), [("_manifest.json", r"_manifest\.json"), ("part-*", "part-00000-.*")])
def test_a_run_from_whose_folder_something_was_deleted_says_so(tmp_path: Path, deleted: str, said: str) -> None:
    (tmp_path / "part").write_text("rows")
    folder = PartFolder("memory://b/out/", ".jsonl", "out")
    folder.add(tmp_path / "part", Totals(answered=1))
    MEMORY.rm(MEMORY.glob(f"/b/out/{deleted}"))
    with pytest.raises(SpecError, match=f"{said} was deleted while a run wrote to this folder"):
        folder.finish()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("memory://b/out.txt", "results are a folder, with a slash at the end"),
        ("memory://", "names no bucket"),
    ],
)
async def test_results_need_a_folder_or_a_known_suffix(url: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        await run(out=url)


def test_transient_errors_are_tried_again_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    store, calls = StoreClient("memory://b/x", "out"), []

    def busy(*_: Any, **__: Any) -> None:
        calls.append(1)
        raise OSError(16, "Please reduce your request rate.")

    monkeypatch.setattr(store.filesystem, "pipe_file", busy)
    with pytest.raises(SpecError, match=r"out 'memory://b/x' cannot be written: .*reduce.*did not answer for a while"):
        store.replace("memory://b/x", b"")
    assert len(calls) == 8
    assert not is_transient(PermissionError())
    assert not is_transient(type("NoCredentialsError", (Exception,), {})())
    assert is_transient(TimeoutError())


def test_an_object_is_created_once_and_a_lost_response_is_no_failure() -> None:
    store = StoreClient("memory://b/x")
    assert store.create("memory://b/x", b"one")
    assert store.create("memory://b/x", b"one")  # the same request again
    assert not store.create("memory://b/x", b"two")


async def test_a_checkpoint_continues_on_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = backend()
    await run(3, backend=served, checkpoint_dir="memory://b/checkpoint")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    await run(5, backend=served, checkpoint_dir="memory://b/checkpoint/")
    assert len(served.requests) == 5
    assert [name.partition("-")[0] for name in names("/b/checkpoint")] == ["data", "report.html", "state"]
    stream = BatchAgent.stream(
        task="{n}", inputs=[{"n": n} for n in range(6)], backend=served, checkpoint_dir="memory://b/checkpoint"
    )
    async with stream:
        assert len([result async for result in stream]) == 6
    assert len(served.requests) == 6


async def test_a_checkpoint_that_was_deleted_starts_over() -> None:
    served = backend()
    await run(3, backend=served, checkpoint_dir="memory://b/checkpoint")
    MEMORY.rm("/b/checkpoint", recursive=True)
    await run(3, backend=served, checkpoint_dir="memory://b/checkpoint")
    assert len(served.requests) == 6


async def test_a_flow_has_its_checkpoint_in_a_bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = backend()
    flow = Flow([{"n": 1}], backend=served, checkpoint_dir="memory://b/flow").map("first", "{n}").map("last", "{first}")
    await flow.run()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    result = await flow.run()
    assert [item["last"] for item in result.items] == ["ok"]
    assert len(served.requests) == 2


async def test_the_earlier_of_two_owners_is_told_at_its_next_upload(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notices: list[str] = []
    with RemoteCheckpoint("memory://b/c", notices.append) as first:
        (first.directory / "facts.txt").write_text("first")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
        with RemoteCheckpoint("memory://b/c", notices.append) as second:
            (second.directory / "facts.txt").write_text("second")
            with pytest.raises(StoreError, match="Another run has taken over the checkpoint"):
                first._upload(is_ended=False)
            with pytest.raises(StoreError, match="Another run has taken over"):
                async with first.guard():
                    await never()
    assert "did not end: continuing from what it uploaded" in notices[0]
    assert (download_checkpoint("memory://b/c", tmp_path / "read") / "facts.txt").read_text() == "second"


async def never() -> None:
    await asyncio.Event().wait()


def test_an_owner_that_slept_through_later_generations_learns_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with RemoteCheckpoint("memory://b/c", print) as first:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
        for number in range(3):
            with RemoteCheckpoint("memory://b/c", print) as later:
                (later.directory / "facts.txt").write_text(str(number))
        (first.directory / "facts.txt").write_text("old")
        with pytest.raises(StoreError, match="Another run has taken over"):
            first._upload(is_ended=False)
    assert (download_checkpoint("memory://b/c", tmp_path / "read") / "facts.txt").read_text() == "2"


def test_a_run_takes_a_checkpoint_over_whose_owner_uploads_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find = remote_checkpoint.find_latest
    with RemoteCheckpoint("memory://b/c", print) as first:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
        uploads = iter(["late"])

        def find_before_upload(store: StoreClient, folder: str) -> Any:
            found = find(store, folder)
            for text in uploads:
                (first.directory / "facts.txt").write_text(text)
                first._upload(is_ended=False)
            return found

        monkeypatch.setattr(remote_checkpoint, "find_latest", find_before_upload)
        with RemoteCheckpoint("memory://b/c", print) as second:
            assert (second.directory / "facts.txt").read_text() == "late"


def test_one_process_of_a_machine_uses_a_checkpoint() -> None:
    with (
        RemoteCheckpoint("memory://b/c", print),
        pytest.raises(StoreError, match="Another run on this machine is using the checkpoint"),
        RemoteCheckpoint("memory://b/c", print),
    ):
        raise AssertionError("opened twice")


def test_a_store_that_fails_at_the_end_leaves_the_checkpoint_here(monkeypatch: pytest.MonkeyPatch) -> None:
    notices: list[str] = []
    with RemoteCheckpoint("memory://b/c", notices.append) as copy:
        (copy.directory / "facts.txt").write_text("kept")
        monkeypatch.setattr(copy._store, "upload", _fail)
    assert f"The checkpoint is complete in {str(copy.directory)!r}" in notices[0]


def _fail(*_: Any) -> None:
    raise SpecError("The store is down.")


def test_where_a_checkpoint_cannot_be_in_a_store_the_error_says_what_to_do() -> None:
    with pytest.raises(SpecError, match=r"Pass it to BatchAgent\.run or stream"):
        BatchSpec(task="x", inputs=[1], checkpoint_dir="s3://b/c")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="hf:// cannot create an object only if there is none"):
        RemoteCheckpoint("hf://datasets/x/y", print)
    with pytest.raises(StoreError, match="is not the checkpoint of a run, or nothing has been uploaded yet"):
        download_checkpoint("memory://b/none", Path())
    assert remote_checkpoint._INTERVAL == 60
