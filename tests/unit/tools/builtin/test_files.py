"""read_file, list_files and grep see one folder, and nothing else."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent import Tool
from batch_agent.tools.builtin.files import grep_tool, list_files_tool, read_file_tool
from batch_agent.tools.builtin.rooted_folder import RootedFolder

SECRET = "the-secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return furnish(tmp_path)


@pytest.fixture(scope="module")
def shared_root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield furnish(Path(folder))


def furnish(place: Path) -> Path:
    folder = place / "open"
    (folder / "below").mkdir(parents=True)
    (folder / "a.txt").write_text("Grüße")
    (folder / "below" / "b.txt").write_text("below")
    (place / "secret.txt").write_text(SECRET)
    (place / "open-too").mkdir()
    (place / "open-too" / "c.txt").write_text(SECRET)
    (folder / "out").symlink_to(place)
    (folder / "out.txt").symlink_to(place / "secret.txt")
    (folder / "in.txt").symlink_to(folder / "a.txt")
    return folder


def test_files_of_the_folder_are_read(root: Path) -> None:
    read = read_file_tool(root)
    assert read(path="a.txt") == "Grüße"
    assert read(path="below/b.txt") == "below"
    assert read(path="below/../a.txt") == "Grüße"
    assert read(path=str(root / "a.txt")) == "Grüße"


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "below/../../secret.txt",
        "/etc/passwd",
        "../open-too/c.txt",
        "../open/../secret.txt",
        "out.txt",
        "out/secret.txt",
        "out/open-too/c.txt",
    ],
)
def test_paths_outside_the_folder_are_refused(root: Path, path: str) -> None:
    with pytest.raises(PermissionError, match="outside"):
        read_file_tool(root)(path=path)


PARTS = st.sampled_from(["..", ".", "", "/", "~", "out", "out.txt", "secret.txt", "open", "open-too", "below", "c.txt"])


@given(path=st.lists(PARTS | st.text(max_size=5), max_size=8).map("/".join))
def test_no_path_reads_a_file_outside_the_folder(shared_root: Path, path: str) -> None:
    for candidate in (path, f"{shared_root}/{path}"):
        try:
            text = read_file_tool(shared_root)(path=candidate)
        except (OSError, ValueError):
            continue
        assert text in ("Grüße", "below")


@given(pattern=st.lists(PARTS | st.sampled_from(["*", "**", "?*", "[a-z]*"]), max_size=6).map("/".join))
def test_no_pattern_lists_a_file_outside_the_folder(shared_root: Path, pattern: str) -> None:
    inside = {"a.txt", "below/b.txt", "in.txt"}
    listed = list_files_tool(shared_root)(pattern=pattern)
    assert listed == f"No file matches {pattern!r}." or set(listed.split("\n")) <= inside
    assert SECRET not in grep_tool(shared_root)(pattern=".", glob=pattern)


def test_a_link_inside_is_followed(root: Path) -> None:
    assert read_file_tool(root)(path="in.txt") == "Grüße"


def test_a_folder_that_becomes_a_link_while_it_is_opened_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root.parent / "b.txt").write_text(SECRET)
    really_stat = os.stat

    def stat_and_swap(path: "str | os.PathLike[str]") -> os.stat_result:
        status = really_stat(path)
        (root / "below").rename(root / "moved")
        (root / "below").symlink_to(root.parent)
        return status

    monkeypatch.setattr("batch_agent.tools.builtin.rooted_folder.os.stat", stat_and_swap)
    with pytest.raises(FileNotFoundError):
        RootedFolder(root).open("below/b.txt")


@pytest.mark.parametrize("path", ["nothing.txt", "below", ".", "", "a.txt/more", "x" * 5000])
def test_a_missing_file_is_reported(root: Path, path: str) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_file_tool(root)(path=path)


def test_a_circle_of_links_is_no_file(root: Path) -> None:
    (root / "here").symlink_to(root / "there")
    (root / "there").symlink_to(root / "here")
    with pytest.raises(FileNotFoundError):
        read_file_tool(root)(path="here")
    assert "here" not in list_files_tool(root)()


def test_a_pipe_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(FileNotFoundError):
        read_file_tool(root)(path="pipe")
    assert "pipe" not in list_files_tool(root)()
    assert "pipe" not in grep_tool(root)(pattern=".")


def test_a_pipe_that_takes_the_place_of_a_file_while_it_is_opened_is_not_waited_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_stat = os.stat

    def stat_and_swap(path: "str | os.PathLike[str]") -> os.stat_result:
        status = really_stat(path)
        (root / "a.txt").unlink()
        os.mkfifo(root / "a.txt")
        return status

    monkeypatch.setattr("batch_agent.tools.builtin.rooted_folder.os.stat", stat_and_swap)
    opened = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        RootedFolder(root).open("a.txt")
    assert os.listdir("/proc/self/fd") == opened


@pytest.mark.parametrize("path", ["a\0.txt", "\ud800"])
def test_an_odd_path_is_refused(root: Path, path: str) -> None:
    with pytest.raises(ValueError, match="is no path"):
        read_file_tool(root)(path=path)


def test_a_binary_file_is_not_poured_into_the_prompt(root: Path) -> None:
    (root / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0" + bytes(range(256)))
    assert read_file_tool(root)(path="image.png") == "[a binary file of 267 bytes]"
    assert "image.png" not in grep_tool(root)(pattern="PNG")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
def test_text_in_the_usual_encodings_is_read(root: Path, encoding: str) -> None:
    (root / "text.txt").write_bytes("Grüße – aus „Köln“\nzwei".encode(encoding))
    assert read_file_tool(root)(path="text.txt") == "Grüße – aus „Köln“\nzwei"
    assert "text.txt:1: Grüße – aus „Köln“" in grep_tool(root)(pattern="Köln")


def test_a_long_file_is_read_in_parts(root: Path) -> None:
    (root / "long.txt").write_text("".join(f"line {number}\n" for number in range(1, 8)))
    read = read_file_tool(root)
    assert read(path="long.txt", limit=3) == "line 1\nline 2\nline 3\n[cut here: the file goes on; use offset=4]"
    assert (
        read(path="long.txt", offset=4, limit=3) == "line 4\nline 5\nline 6\n[cut here: the file goes on; use offset=7]"
    )
    assert read(path="long.txt", offset=7, limit=3) == "line 7\n"
    with pytest.raises(ValueError, match="ends before line 8"):
        read(path="long.txt", offset=8)


@given(text=st.text("ab\n\r", max_size=30), limit=st.integers(1, 5))
def test_the_parts_of_a_file_are_the_whole(shared_root: Path, text: str, limit: int) -> None:
    (shared_root.parent / "parts").mkdir(exist_ok=True)
    (shared_root.parent / "parts" / "file").write_text(text, newline="")
    read = read_file_tool(shared_root.parent / "parts")
    parts, offset = "", 1
    while "[cut here" in (part := read(path="file", offset=offset, limit=limit)):
        parts += part.partition("[cut here")[0]
        offset += limit
    assert parts + part == text == read(path="file")


def test_a_big_file_is_cut_at_a_line_and_says_where_to_go_on(root: Path) -> None:
    (root / "big.txt").write_bytes(b"x" * 999_999 + b"\n" + b"y" * 999_999 + b"\n" + b"z" * 10)
    read = read_file_tool(root)
    assert read(path="big.txt").endswith("y\n[cut here after 2000000 characters; use offset=3]")
    assert read(path="big.txt", offset=3) == "z" * 10


def test_a_line_that_is_too_long_is_cut_and_says_so(root: Path) -> None:
    (root / "big.txt").write_bytes(b"x" * 3_000_000 + b"\nend")
    read = read_file_tool(root)
    assert read(path="big.txt").endswith("x\n[cut here: only the first 2000000 characters of line 1 are shown]")
    assert read(path="big.txt", offset=2) == "end"


def test_a_result_is_good_until_the_file_changes(root: Path) -> None:
    version = read_file_tool(root).sharing.version
    assert version is not None
    before = version({"path": "a.txt"})
    assert before == version({"path": "a.txt"}) == version({"path": "in.txt"}) is not None
    (root / "a.txt").write_text("Something else")
    assert version({"path": "a.txt"}) != before
    assert version({"path": "nothing"}) is version({"path": "../secret.txt"}) is version({"path": "\0"}) is None


def test_without_a_folder_it_is_the_working_directory_of_the_call(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    assert Tool.read_file(path="a.txt") == "Grüße"
    assert Tool.list_files() == "a.txt\nbelow/b.txt\nin.txt"
    assert Tool.grep(pattern="low") == "below/b.txt:1: below"
    monkeypatch.chdir(root / "below")
    with pytest.raises(PermissionError):
        Tool.read_file(path="../a.txt")
    assert Tool.list_files() == "b.txt"


@pytest.mark.parametrize(
    ("pattern", "listed"),
    [
        ("**/*", ["a.md", "src/a.py", "src/deep/b.py", "src/deep/b.txt"]),
        ("*.py", ["src/a.py", "src/deep/b.py"]),
        ("./*.md", ["a.md"]),
        ("src/*.py", ["src/a.py"]),
        ("src/**/*.py", ["src/a.py", "src/deep/b.py"]),
        ("**/deep/**", ["src/deep/b.py", "src/deep/b.txt"]),
        ("**/**/**/**/**/**/**/**/**/**/b.?y", ["src/deep/b.py"]),
        ("src", ["src/a.py", "src/deep/b.py", "src/deep/b.txt"]),
        ("src/deep/", ["src/deep/b.py", "src/deep/b.txt"]),
        ("src/a.py", ["src/a.py"]),
        ("[ab].md", ["a.md"]),
        ("../*", ["No file matches '../*'."]),
        ("*.rs", ["No file matches '*.rs'."]),
    ],
)
def test_patterns_choose_files(tmp_path: Path, pattern: str, listed: list[str]) -> None:
    for path in ("a.md", "src/a.py", "src/deep/b.py", "src/deep/b.txt", ".git/config", "node_modules/x/y.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert list_files_tool(tmp_path)(pattern=pattern).split("\n") == listed


def test_a_long_list_is_cut_and_says_so(tmp_path: Path) -> None:
    for number in range(1003):
        (tmp_path / f"{number:04}").touch()
    *paths, marker = list_files_tool(tmp_path)().split("\n")
    assert paths == [f"{number:04}" for number in range(1000)]
    assert marker == "[cut here: 1000 of 1003 files are shown; use a narrower pattern]"


def test_a_folder_without_end_is_left_and_that_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batch_agent.tools.builtin.rooted_folder._MAX_FILES", 1)
    for text in (list_files_tool(root)(), grep_tool(root)(pattern="Gr")):
        assert text.endswith("[too many files: not all folders were searched]")


def test_a_name_with_a_line_break_is_not_two_lines(tmp_path: Path) -> None:
    (tmp_path / "one\ntwo").write_text("word")
    assert list_files_tool(tmp_path)() == r"'one\ntwo'"
    assert grep_tool(tmp_path)(pattern="word") == r"'one\ntwo':1: word"


def test_grep_gives_paths_and_lines(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os\r\n\r\ndef main():\r\n    pass\r\n")
    (tmp_path / "b.md").write_text("Define MAIN here")
    assert grep_tool(tmp_path)(pattern=r"def \w+\(\):$") == "a.py:3: def main():"
    assert grep_tool(tmp_path)(pattern="main", ignore_case=True) == "a.py:3: def main():\nb.md:1: Define MAIN here"
    assert grep_tool(tmp_path)(pattern="(?i)main", glob="*.md") == "b.md:1: Define MAIN here"
    assert grep_tool(tmp_path)(pattern="absent") == "No line matches 'absent' in the 2 files that match '**/*'."


@pytest.mark.parametrize("at", [0, 299, 1_995, 2_998, 49_994])
def test_a_long_line_is_searched_whole_and_shown_where_it_matches(tmp_path: Path, at: int) -> None:
    (tmp_path / "a.txt").write_text("." * at + "needle" + "." * (49_994 - at))
    found = grep_tool(tmp_path)(pattern="needle")
    assert found.startswith("a.txt:1: ")
    assert "needle" in found
    assert len(found) <= len("a.txt:1: ") + 300


def test_no_expression_stops_the_program(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 100_000 + "b")
    assert grep_tool(tmp_path)(pattern="(a+)+b$").startswith("a.txt:1: aaa")
    (tmp_path / "a.txt").write_text("a" * 1_000 + "b")
    assert grep_tool(tmp_path)(pattern="(a+)+$").startswith("No line matches")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "unclosed group"),
        ("(?=a)", "look-around"),
        (r"(a)\1", "backreferences are not supported"),
        ("a{1000}{1000}", "Compiled regex exceeds size limit"),
    ],
)
def test_an_invalid_regular_expression_is_reported(tmp_path: Path, pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match="is not a regular expression") as caught:
        grep_tool(tmp_path)(pattern=pattern)
    assert reason in str(caught.value)


def test_many_matches_are_cut_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n" * 150)
    (tmp_path / "b.txt").write_text("x\n" * 150)
    *found, marker = grep_tool(tmp_path)(pattern="x").split("\n")
    assert len(found) == 200
    assert marker == "[stopped here, in file 2 of 2; use a narrower glob]"


def test_a_search_that_takes_too_long_gives_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    assert grep_tool(tmp_path, seconds=0)(pattern="x").endswith("[stopped here, in file 1 of 1; use a narrower glob]")


def test_the_rest_of_a_big_file_is_not_searched_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 1_000_000 + "\n" + "x" * 1_000_000 + "\nfound")
    assert "[a.txt: only the first 2000000 bytes were searched]" in grep_tool(tmp_path)(pattern="found")


def test_a_file_that_may_not_be_read_is_said_to_be_that(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("batch_agent.tools.builtin.rooted_folder.os.open", refuse)  # the tests may run as root
    with pytest.raises(PermissionError, match="may not be read"):
        read_file_tool(root)(path="a.txt")
    assert grep_tool(root)(pattern=".").startswith("No line matches")


def test_models_see_what_the_parameters_are_for() -> None:
    for tool in (Tool.read_file, Tool.list_files, Tool.grep):
        assert tool.description
        for described in tool.spec.parameters["properties"].values():
            assert described["description"]


def test_a_link_that_vanishes_while_the_folder_is_looked_through_is_passed_over(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_read = os.readlink

    def read_and_vanish(path: "str | os.PathLike[str]", **options: int) -> str:
        if str(path).endswith("in.txt"):
            (root / "in.txt").unlink(missing_ok=True)
        return really_read(path, **options)

    monkeypatch.setattr("os.readlink", read_and_vanish)
    assert list_files_tool(root)().splitlines()[:2] == ["a.txt", "below/b.txt"]
    (root / "in.txt").symlink_to(root / "a.txt")
    assert "a.txt:1: Grüße" in grep_tool(root)(pattern=".")
    (root / "in.txt").symlink_to(root / "a.txt")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_file_tool(root)(path="in.txt")
