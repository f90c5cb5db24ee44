"""Inputs that are compressed, matched by a pattern, downloaded, or piped in."""

import gzip
import io
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.support.event_list import EventList

from batch_agent import BatchAgent, Rows, SpecError
from batch_agent.data import check_output_path, read_inputs
from batch_agent.testing import ScriptedBackend, say

packed = partial(gzip.compress, mtime=0)
LINES = b'{"id": 1}\n{"id": 2}\n'
ROWS = [{"id": 1}, {"id": 2}]


class FileServer(ThreadingHTTPServer):
    """HTTP server of some files on the loopback interface."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        path = self.path.partition("?")[0]
        if path == "/moved.jsonl":
            self.send_response(302)
            self.send_header("Location", "/in.jsonl")
            self.end_headers()
            return
        if path not in self.server.files:
            self.send_error(404)
            return
        body = self.server.files[path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + 100 * ("cut" in path)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("in.jsonl.gz", LINES, ROWS),
        ("IN.NDJSON.GZ", LINES, ROWS),
        ("in.json.gz", b"[1, 2]", [1, 2]),
        ("in.csv.gz", "\ufeffname;age\nZoë;007\n".encode(), [{"name": "Zoë", "age": "007"}]),
        ("in.tsv.gz", b"a\tb\n1\t2\n", [{"a": "1", "b": "2"}]),
    ],
)
def test_a_compressed_file_is_read_like_the_file(tmp_path: Path, name: str, content: bytes, rows: list[Any]) -> None:
    path = tmp_path / name
    path.write_bytes(packed(content))
    assert read_inputs(path) == read_inputs(str(path)) == rows


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (packed(LINES * 100)[:-9], "cannot be decompressed: it ends too early"),
        (packed(LINES)[:-8] + b"12345678", "cannot be decompressed: CRC check failed"),
        (packed(b"a,b\n1\n"), r"line 1: not valid JSON"),
    ],
)
def test_a_compressed_file_that_is_broken_is_one_clear_error(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=rf"in\.jsonl\.gz'?.*{problem}"):
        read_inputs(path)


def test_a_pattern_of_data_files_is_the_rows_of_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.jsonl").write_bytes(LINES)
    (tmp_path / "a.jsonl.gz").write_bytes(packed(b'{"id": 0}\n'))
    (tmp_path / "deep" / "c.jsonl").write_bytes(b'{"id": 3}\n')
    (tmp_path / "note.txt").write_text("no data")
    duckdb.sql("SELECT 1 AS id").write_parquet(str(tmp_path / "a.parquet"))
    duckdb.sql("SELECT 2 AS id").write_parquet(str(tmp_path / "b.parquet"))
    assert read_inputs(f"{tmp_path}/*.jsonl") == ROWS
    assert read_inputs(tmp_path / "*.jsonl.gz") == [{"id": 0}]
    assert read_inputs(f"{tmp_path}/**/*.jsonl") == [*ROWS, {"id": 3}]
    assert read_inputs(f"{tmp_path}/*.parquet") == ROWS
    assert read_inputs(f"{tmp_path}/[ab].jsonl", Rows(limit=1)) == [{"id": 1}]


def test_any_other_pattern_is_an_input_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").write_text("# B")
    (tmp_path / "docs" / "a.md").write_text("# A")
    (tmp_path / "docs" / "c.py").write_text("pass")
    (tmp_path / "docs" / "d.md").write_bytes(b"\0binary")
    assert read_inputs("docs/*.md") == [
        {"path": "docs/a.md", "name": "a.md", "text": "# A"},
        {"path": "docs/b.md", "name": "b.md", "text": "# B"},
    ]
    monkeypatch.chdir(tmp_path / "docs")
    assert [row["name"] for row in read_inputs("*.py")] == ["c.py"]  # type: ignore[union-attr]
    with pytest.raises(SpecError, match=r"No file matches 'docs/\*\.rst'"):
        read_inputs("docs/*.rst")


def test_a_file_whose_name_has_wildcards_is_that_file(tmp_path: Path) -> None:
    path = tmp_path / "in[1].jsonl"
    path.write_bytes(LINES)
    assert read_inputs(path) == ROWS


def test_results_may_not_match_the_pattern_of_the_inputs(tmp_path: Path) -> None:
    for pattern in (f"{tmp_path}/*.jsonl", f"{tmp_path}/**/*.jsonl"):
        with pytest.raises(SpecError, match=r"out '.*out\.jsonl' matches the inputs"):
            check_output_path(pattern, tmp_path / "out.jsonl")
    check_output_path(f"{tmp_path}/*.jsonl", tmp_path / "out.csv")
    check_output_path(f"{tmp_path}/*.jsonl", tmp_path / "results" / "out.jsonl")


async def test_a_file_is_downloaded_once_and_its_size_is_shown(server: FileServer) -> None:
    server.files = {"/in.jsonl": LINES, "/in.csv.gz": packed(b"id\n007\n")}
    log = EventList()

    results = await BatchAgent.run(
        task="{id}",
        inputs=f"{server.url}/in.jsonl",
        backend=ScriptedBackend(lambda request: say("ok")),
        events=log,
    )
    assert [result.input for result in results] == ROWS
    assert server.requests == ["/in.jsonl"]
    assert log.notices == [f"Downloaded {server.url}/in.jsonl (20 bytes)."]
    assert read_inputs(f"{server.url}/in.csv.gz") == [{"id": "007"}]
    assert read_inputs(f"{server.url}/moved.jsonl") == ROWS


def test_the_format_of_a_download_can_be_given(server: FileServer) -> None:
    server.files = {"/export": b"id\n007\n", "/rows.parquet": b"no parquet"}
    assert read_inputs(f"{server.url}/export?token=s3cret", Rows(input_format="csv")) == [{"id": "007"}]
    with pytest.raises(SpecError, match=r"/export' has an unknown suffix.*input_format='csv'") as caught:
        read_inputs(f"{server.url}/export?token=s3cret")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(SpecError, match="cannot be read"):
        read_inputs(f"{server.url}/rows.parquet")


def test_a_download_that_fails_is_one_clear_error(server: FileServer) -> None:
    server.files = {"/cut.jsonl": LINES, "/broken.jsonl": b"{", "/empty.jsonl": b""}
    address = server.url.replace("//", "//me:s3cret@")
    for name, problem in [
        ("none.jsonl", "cannot be downloaded: the server answered 404"),
        ("cut.jsonl", "was cut short: 20 of 120 bytes arrived"),
        ("broken.jsonl", "line 1: not valid JSON"),
        ("empty.jsonl", "has no inputs"),
    ]:
        with pytest.raises(SpecError, match=problem) as caught:
            read_inputs(f"{server.url}/{name}")
        assert server.url in str(caught.value)
    with pytest.raises(SpecError, match="cannot be downloaded") as caught:
        read_inputs(f"{address}/none.jsonl")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(SpecError, match=r"cannot be downloaded: .*refused"):
        read_inputs("http://127.0.0.1:1/in.jsonl")


@pytest.mark.parametrize(
    ("options", "piped", "rows"),
    [
        ({}, LINES, ROWS),
        ({}, packed(LINES), ROWS),
        ({"input_format": "csv"}, b"id\n007\n", [{"id": "007"}]),
        ({"input_format": "lines"}, "ä b\r\n\nc".encode(), ["ä b", "c"]),
        ({"limit": 1}, LINES, ROWS[:1]),
    ],
)
def test_standard_input_is_read(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], piped: bytes, rows: list[Any]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(piped)))
    assert read_inputs("-", Rows(**options)) == rows


def test_standard_input_in_another_format_is_refused_with_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"id\n007\n")))
    with pytest.raises(SpecError, match=r"^standard input, line 1: not valid JSON.*input_format='csv'"):
        read_inputs("-")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(SpecError, match="Standard input has no inputs"):
        read_inputs("-")
