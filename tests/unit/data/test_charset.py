"""Text files by their encoding, and files that are no text: nothing is sent with replacement characters."""

import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from tests.support.event_list import EventList

from batch_agent import BatchAgent, Flow, SpecError
from batch_agent.charset import file_encoding, is_binary
from batch_agent.core.options import Rows
from batch_agent.data import read_inputs
from batch_agent.testing import ScriptedBackend, say

TEXT = "Grüße aus Köln"
PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj <</Type /Catalog>> endobj\n"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def echo() -> ScriptedBackend:
    return ScriptedBackend(lambda request: say(request.messages[0].text))  # type: ignore[union-attr]


def contents(encoding: str) -> dict[str, bytes]:
    """The same row in every format, in one encoding."""
    raw = {
        "in.csv": f"text,n\n{TEXT},1\n",
        "in.tsv": f"text\tn\n{TEXT}\t1\n",
        "in.jsonl": f'{{"text": "{TEXT}", "n": "1"}}\n',
        "in.json": f'[{{"text": "{TEXT}", "n": "1"}}]',
    }
    return {name: text.encode(encoding) for name, text in raw.items()}


@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.jsonl", "in.json"])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_file_in_another_encoding_is_refused_or_read_as_declared(
    tmp_path: Path, name: str, is_compressed: bool
) -> None:
    path = tmp_path / (f"{name}.gz" if is_compressed else name)
    data = contents("cp1252")[name]
    path.write_bytes(gzip.compress(data) if is_compressed else data)
    with pytest.raises(SpecError, match=rf"{name}.*, line \d: not UTF-8 .*encoding='cp1252' or 'latin-1', or save"):
        read_inputs(path)
    assert read_inputs(path, Rows(encoding="cp1252")) == [{"text": TEXT, "n": "1"}]


@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.jsonl", "in.json"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("declared", [None, "cp1252"])
def test_a_byte_order_mark_and_utf8_need_no_declaration(
    tmp_path: Path, name: str, encoding: str, declared: str | None
) -> None:
    (tmp_path / name).write_bytes(contents(encoding)[name])
    assert read_inputs(tmp_path / name, Rows(encoding=declared)) == [{"text": TEXT, "n": "1"}]


def test_a_declared_encoding_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(contents("cp1252")["in.csv"])
    with pytest.raises(SpecError, match=r"in\.csv: not ascii .*: pass another encoding="):
        read_inputs(tmp_path / "in.csv", Rows(encoding="ascii"))


@pytest.mark.parametrize("encoding", ["nonsense", "hex", "", 5, b"utf-8", "a\0b"])
def test_an_unknown_encoding_is_refused(encoding: Any) -> None:
    with pytest.raises(SpecError, match=r"^encoding must be the name of a text encoding, such as 'cp1252'"):
        Rows(encoding=encoding)


def test_a_folder_is_read_by_the_encoding_of_each_file(tmp_path: Path) -> None:
    for name, encoding in {"a": "utf-8", "b": "utf-16", "c": "utf-8-sig", "d": "cp1252"}.items():
        (tmp_path / f"{name}.txt").write_bytes(TEXT.encode(encoding))
    with pytest.raises(SpecError, match=r"d\.txt, line 1: not UTF-8 .*encoding='cp1252'"):
        read_inputs(tmp_path)
    rows = read_inputs(tmp_path, Rows(encoding="cp1252"))
    assert [row["text"] for row in rows] == [TEXT] * 4  # type: ignore[union-attr]


async def test_nothing_is_sent_for_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine")
    (tmp_path / "b.txt").write_bytes(TEXT.encode("latin-1"))
    backend = echo()
    with pytest.raises(SpecError, match="not UTF-8"):
        await BatchAgent.run(task="{text}", inputs=f"{tmp_path}/", backend=backend, progress=False)
    with pytest.raises(SpecError, match="not UTF-8"):
        await Flow(f"{tmp_path}/", backend=backend).map("read", "{text}").run()
    assert backend.requests == []
    results = await BatchAgent.run(task="{text}", inputs=tmp_path, encoding="latin-1", backend=backend, progress=False)
    assert results.outputs == ["fine", TEXT]


async def test_binary_files_of_a_folder_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / "deep").mkdir()
    doc = b"\xd0\xcf\x11\xe0"
    for name, data in {"deep/paper.doc": doc, "b.png": PNG, "c.bin": b"\xff\x01\x02", "d.zip": b"PK\x03\x04"}.items():
        (tmp_path / name).write_bytes(data)
    heard = EventList()
    results = await BatchAgent.run(task="{text}", inputs=tmp_path, backend=echo(), events=heard)
    assert results.outputs == ["fine"]
    [notice] = [text for text in heard.notices if "binary" in text]
    assert notice.startswith(f"4 binary files in {str(tmp_path)!r} will not be read: b.png, c.bin, d.zip, and 1 more. ")
    assert "texts and PDFs, or only images" in notice
    for source in (str(tmp_path), f"{tmp_path}/*.*"):
        read_inputs(source)
        assert " binary files in " in capsys.readouterr().err
    await Flow(f"{tmp_path}/", backend=echo()).map("read", "{text}").run()
    assert "4 binary files in " in capsys.readouterr().err


def test_a_folder_of_binary_files_only_is_an_error_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "paper.doc").write_bytes(b"\xd0\xcf\x11\xe0")
    with pytest.raises(SpecError, match=r"has no text files, only 1 binary file: paper\.doc\. Inputs are text"):
        read_inputs(tmp_path)


@pytest.mark.parametrize(
    ("head", "declared", "expected"),
    [
        (b"plain", None, False),
        ("ü".encode(), None, False),
        (b"a\x01 control in UTF-8", None, False),
        (b"\xe4\x01", None, True),
        (b"a\0b", None, True),
        ("ab".encode("utf-16-le"), "utf-16-le", False),
        ("ab".encode("utf-16"), None, False),
        (b"\x1b$B", "iso-2022-jp", False),
        (PDF, "latin-1", True),
        (PNG, "utf-16-le", True),
        (b"", None, False),
    ],
)
def test_binary_files_are_recognized(head: bytes, declared: str | None, expected: bool) -> None:
    assert is_binary(head, declared) is expected


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("日本語", "iso-2022-jp"),
        ("日本語", "shift-jis"),
        ("日本語", "utf-16-le"),
        ("Ærø", "cp1252"),
        ("plain", "cp1252"),
    ],
)
def test_a_declared_encoding_is_used_for_what_is_not_utf8(text: str, encoding: str) -> None:
    data = io.BytesIO(text.encode(encoding))
    assert data.getvalue().decode(file_encoding(data, encoding)) == text
    assert data.tell() == 0


def test_a_character_that_spans_two_chunks_is_utf8() -> None:
    data = io.BytesIO(b"a" * (1024 * 1024 - 1) + "ü".encode())
    assert file_encoding(data, "cp1252") == "utf-8"
