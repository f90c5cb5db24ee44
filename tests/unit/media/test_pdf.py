"""PDFs: text with the number of each page, and errors that name the file and the page."""

import io
import subprocess
import sys
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


RENDERED_BY_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from batch_agent.media.pdf import page_pixels, render_page
data = open(sys.argv[1], "rb").read()
with ThreadPoolExecutor(8) as pool:
    sizes = list(pool.map(lambda number: page_pixels(data, 1 + number % 2, "a.pdf", 64), range(200)))
    pages = list(pool.map(lambda number: render_page(data, 1 + number % 2, "a.pdf", 64), range(200)))
print(len(set(sizes)), len(set(pages[::2])), len(set(pages[1::2])))
"""


def test_pages_are_rendered_by_several_threads_at_once(tmp_path: Path) -> None:
    document = saved(tmp_path / "a.pdf", pdf("one", "two"))
    command = [sys.executable, "-c", RENDERED_BY_THREADS, str(document)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stdout) == (0, "1 1 1\n")
