"""PDFs: text with the number of each page, and errors that name the file and the page."""

import io
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter
from tests.support.pictures import pdf, saved

from batch_agent import SpecError
from batch_agent.data import read_inputs
from batch_agent.media.pdf import pdf_text
from batch_agent.tools.builtin.files import read_file_tool


def encrypted(data: bytes) -> bytes:
    writer, written = PdfWriter(PdfReader(io.BytesIO(data))), io.BytesIO()
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(written)
    return written.getvalue()


def test_each_page_is_headed_by_its_number() -> None:
    assert pdf_text(pdf("one", "", "three"), "a.pdf") == (
        "[page 1 of 3]\none\n\n[page 2 of 3]\n\n\n[page 3 of 3]\nthree"
    )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (pdf("", ""), "has no text on its 2 pages: they are pictures.*Image\\(path, page=1\\)"),
        (b"%PDF-1.7\n%\xe2\xe3", "is not a PDF that can be read"),
        (encrypted(pdf("one")), "is encrypted: save it without a password"),
    ],
    ids=["scan", "damaged", "encrypted"],
)
def test_a_pdf_without_text_is_named(tmp_path: Path, data: bytes, problem: str) -> None:
    saved(tmp_path / "a.pdf", data)
    with pytest.raises(ValueError, match=f"a.pdf' {problem}"):
        pdf_text(data, "a.pdf")
    with pytest.raises(SpecError, match=f"a.pdf' {problem}"):
        read_inputs(tmp_path / "*.pdf")
    assert read_file_tool(tmp_path)(path="a.pdf").startswith(f"[a PDF of {len(data)} bytes that cannot be read: ")


def test_pdfs_of_a_folder_are_inputs_beside_text_files(tmp_path: Path) -> None:
    saved(tmp_path / "a.pdf", pdf("one"))
    saved(tmp_path / "b.txt", b"two")
    rows = read_inputs(tmp_path)
    assert isinstance(rows, list)
    assert [row["text"] for row in rows] == ["[page 1 of 1]\none", "two"]


def test_read_file_reads_a_pdf_as_lines(tmp_path: Path) -> None:
    saved(tmp_path / "a.pdf", pdf("one", "two"))
    assert read_file_tool(tmp_path)(path="a.pdf", offset=4) == "[page 2 of 2]\ntwo"
