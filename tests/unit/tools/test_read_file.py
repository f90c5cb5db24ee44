"""read_file sees one folder, and nothing else."""

import os
from pathlib import Path

import pytest

from batch_agent import Tool
from batch_agent.tools import read_file_tool


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "open"
    (folder / "below").mkdir(parents=True)
    (folder / "a.txt").write_text("Grüße")
    (folder / "below" / "b.txt").write_text("below")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "open-too").mkdir()
    (tmp_path / "open-too" / "c.txt").write_text("secret")
    return folder


def test_files_of_the_folder_are_read(root: Path) -> None:
    read = read_file_tool(root)
    assert read(path="a.txt") == "Grüße"
    assert read(path="below/b.txt") == "below"
    assert read(path="below/../a.txt") == "Grüße"
    assert read(path=str(root / "a.txt")) == "Grüße"


@pytest.mark.parametrize(
    "path", ["../secret.txt", "below/../../secret.txt", "/etc/passwd", "../open-too/c.txt", "../open/../secret.txt"]
)
def test_what_lies_outside_is_refused(root: Path, path: str) -> None:
    with pytest.raises(PermissionError, match="outside"):
        read_file_tool(root)(path=path)


def test_a_link_that_leads_outside_is_refused(root: Path) -> None:
    (root / "link.txt").symlink_to(root.parent / "secret.txt")
    (root / "folder").symlink_to(root.parent)
    read = read_file_tool(root)
    for path in ("link.txt", "folder/secret.txt"):
        with pytest.raises(PermissionError, match="outside"):
            read(path=path)


def test_a_link_inside_is_followed(root: Path) -> None:
    (root / "link.txt").symlink_to(root / "a.txt")
    assert read_file_tool(root)(path="link.txt") == "Grüße"


@pytest.mark.parametrize("path", ["nothing.txt", "below", ".", ""])
def test_what_is_no_file_is_said_to_be_none(root: Path, path: str) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_file_tool(root)(path=path)


def test_a_pipe_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(FileNotFoundError):
        read_file_tool(root)(path="pipe")


def test_an_odd_path_is_refused(root: Path) -> None:
    with pytest.raises(ValueError):
        read_file_tool(root)(path="a\0.txt")


def test_a_binary_file_is_not_poured_into_the_prompt(root: Path) -> None:
    (root / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0" + bytes(range(256)))
    assert read_file_tool(root)(path="image.png") == "[a binary file of 267 bytes]"


def test_text_in_another_encoding_is_read_as_well_as_can_be(root: Path) -> None:
    (root / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    assert read_file_tool(root)(path="latin.txt") == "Gr��e"


def test_a_big_file_is_cut_and_says_so(root: Path) -> None:
    (root / "big.txt").write_bytes(b"x" * 3_000_000)
    text = read_file_tool(root)(path="big.txt")
    assert text.startswith("xxx")
    assert text.endswith("[cut here: only the first 2000000 bytes are shown]")


def test_without_a_folder_it_is_the_working_directory_of_the_call(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    assert Tool.read_file(path="a.txt") == "Grüße"
    monkeypatch.chdir(root / "below")
    with pytest.raises(PermissionError):
        Tool.read_file(path="../a.txt")
