"""Built-in tools that read, list and search the files of one folder."""

import io
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, BinaryIO, Protocol

from pydantic import Field
from pydantic_core import SchemaError, SchemaValidator, core_schema

from ...charset import file_encoding, is_binary, is_utf8
from ...core.errors import SpecError
from ...core.images import Image
from ...core.images.image_format import SUPPORTED, media_type_of, pixels_of
from ...media.image_files import PDF
from ...media.pdf import pdf_text
from ..tool import Tool, make_tool
from .rooted_folder import RootedFolder, shown

_SNIFFED_BYTES = 65_536
_WESTERN = "cp1252"
"""Encoding assumed for text that is not UTF-8, unless it has bytes that are undefined in it."""
_MAX_CHARS = 2_000_000
_MAX_BYTES = 2_000_000
_MAX_IMAGE_BYTES = 20 * 1024 * 1024
_MAX_LISTED = 1_000
_MAX_MATCHES = 200
_MAX_WINDOW_CHARS = 2_000
"""Of a line that are matched at once: how long that takes grows with their number, and it cannot be interrupted."""
_MAX_SHOWN_LINE_CHARS = 300


def read_file_tool(root: str | Path | None = None, *, encoding: str | None = None) -> Tool:
    """A tool `read_file`, confined to `root`. None: the folder of the inputs, if they are one; otherwise the working
    directory at the time of the call. `encoding`: of files that are not UTF-8; None: cp1252, as far as it fits."""
    folder = RootedFolder(root)

    def read_file(
        path: str, offset: Annotated[int, Field(ge=1)] = 1, limit: Annotated[int, Field(ge=1)] | None = None
    ) -> Any:
        """Read a text file.

        Args:
            path: Which file.
            offset: The line to begin with, counted from 1.
            limit: How many lines to read at most, to read a long file in parts.
        """
        with folder.open(path) as file:
            head = file.read(_SNIFFED_BYTES)
            if is_binary(head, encoding):
                return _binary(file, head, path, offset, limit)
            file.seek(0)
            found = _encoding(file, head, path, encoding)
            with io.TextIOWrapper(file, found, errors="backslashreplace", newline="\n") as stream:
                return _page(stream, path, offset, limit)

    def version(arguments: Mapping[str, Any]) -> Hashable:
        return folder.version(arguments["path"])

    tool = replace(make_tool(read_file, effect="read", version=version), returns_images=True)
    return _relocatable(tool, read_file_tool, root, encoding)


def list_files_tool(root: str | Path | None = None) -> Tool:
    """A tool `list_files`, confined to `root` (None: as `read_file_tool`)."""
    folder = RootedFolder(root)

    def list_files(pattern: str = "**/*") -> str:
        """List the files whose paths match a pattern, such as "src/**/*.py", "*.md" or a folder's name.

        Args:
            pattern: * and ? stand for parts of a name, ** for any folders. Without a slash: in every folder.
        """
        paths, is_whole = folder.files(pattern)
        listed = [shown(path) for path in paths[:_MAX_LISTED]] or [f"No file matches {pattern!r}."]
        if len(paths) > _MAX_LISTED:
            listed.append(f"[cut here: {_MAX_LISTED} of {len(paths)} files are shown; use a narrower pattern]")
        return "\n".join(listed + _incomplete_note(is_whole))

    tool = make_tool(list_files, effect="read", ttl=10)
    return tool if root is not None else replace(tool, relocate=lambda folder, _: list_files_tool(folder or "."))


def grep_tool(root: str | Path | None = None, *, seconds: float = 10.0, encoding: str | None = None) -> Tool:
    """A tool `grep`, confined to `root`. `root=None` and `encoding`: as of `read_file_tool`. After `seconds` it returns
    what it has found so far."""
    folder = RootedFolder(root)

    def grep(pattern: str, glob: str = "**/*", ignore_case: bool = False) -> str:
        """Search the lines of text files for a regular expression. Gives each as "path:line: text".

        Args:
            pattern: A regular expression, without look-around and backreferences.
            glob: Which files: a path, a folder, or a pattern such as "src/**/*.py" or "*.md".
            ignore_case: Whether capital letters match small ones.
        """
        matches = _expression(f"(?i){pattern}" if ignore_case else pattern, pattern)
        paths, is_whole = folder.files(glob)
        search = _Search(folder, matches, monotonic() + seconds, encoding)
        for number, path in enumerate(paths):
            if search.is_full or not search.search_file(path):
                search.notes.append(f"[stopped here, in file {number + 1} of {len(paths)}; use a narrower glob]")
                break
        found = search.found or [f"No line matches {pattern!r} in the {len(paths)} files that match {glob!r}."]
        return "\n".join(found + search.notes + _incomplete_note(is_whole))

    return _relocatable(make_tool(grep, effect="read", ttl=10), partial(grep_tool, seconds=seconds), root, encoding)


class _Factory(Protocol):
    def __call__(self, root: str | Path | None, *, encoding: str | None) -> Tool: ...


def _relocatable(tool: Tool, factory: _Factory, root: str | Path | None, encoding: str | None) -> Tool:
    """The tool; one without a root can be made again for the folder of the inputs."""
    if root is not None:
        return tool
    return replace(tool, relocate=lambda folder, declared: factory(folder or ".", encoding=encoding or declared))


def _binary(file: BinaryIO, head: bytes, path: str, offset: int, limit: int | None) -> Any:
    """Reads a file that is not text: an image as an image, a PDF as the text of its pages."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    media_type = media_type_of(head)
    if media_type in SUPPORTED and size <= _MAX_IMAGE_BYTES and pixels_of(data := file.read(), media_type):
        return Image(data)
    if not head.startswith(PDF):
        return f"[a binary file of {size} bytes]"
    try:
        text = pdf_text(file, path)
    except (SpecError, ValueError) as error:
        return f"[a PDF of {size} bytes that cannot be read: {error}]"
    return _page(
        io.TextIOWrapper(io.BytesIO(text.encode(errors="replace")), "utf-8", newline="\n"), path, offset, limit
    )


def _encoding(file: BinaryIO, head: bytes, path: str, declared: str | None) -> str:
    """Raises ValueError for text whose encoding is not known: replacement characters would hide what it says."""
    encoding = file_encoding(file, declared)
    if declared is not None or encoding != "utf-8" or is_utf8(head):
        return encoding
    try:
        head.decode(_WESTERN)
    except UnicodeDecodeError:
        raise ValueError(f"{path!r} is not UTF-8, and its encoding is not known") from None
    return _WESTERN


def _page(stream: io.TextIOWrapper, path: str, offset: int, limit: int | None) -> str:
    """Reads lines of any length; a line longer than what is shown is never held in memory whole."""
    line = 1
    while line < offset:
        piece = stream.readline(_MAX_CHARS)
        if not piece:
            raise _beyond(path, offset)
        line += piece.endswith("\n")
    lines: list[str] = []
    room = _MAX_CHARS
    while piece := stream.readline(room + 1):
        if len(lines) == limit:
            return "".join(lines) + f"[cut here: the file goes on; use offset={offset + len(lines)}]"
        if len(piece) > room:
            return _cut("".join(lines), piece[:room], offset + len(lines))
        room -= len(piece)
        lines.append(piece)
    if not lines and offset > 1:
        raise _beyond(path, offset)
    return "".join(lines)


def _beyond(path: str, offset: int) -> ValueError:
    return ValueError(f"{path!r} ends before line {offset}; use a smaller offset")


def _cut(whole_lines: str, piece: str, line: int) -> str:
    if whole_lines:
        return f"{whole_lines}[cut here after {len(whole_lines)} characters; use offset={line}]"
    return f"{piece}\n[cut here: only the first {_MAX_CHARS} characters of line {line} are shown]"


def _expression(pattern: str, given: str) -> Callable[[object], bool]:
    """Regular expressions of Rust, through pydantic: every pattern takes linear time, whereas one for `re` may block
    the whole program, other threads included."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except SchemaError as error:
        reason = str(error).splitlines()[-1].strip().removeprefix("SchemaError: ").removeprefix("error: ")
        raise ValueError(f"{given!r} is not a regular expression that grep supports: {reason}") from error


class _Search:
    """Matches of one grep so far."""

    def __init__(
        self, folder: RootedFolder, matches: Callable[[object], bool], until: float, encoding: str | None
    ) -> None:
        self.found: list[str] = []
        self.notes: list[str] = []
        self._folder = folder
        self._matches = matches
        self._until = until
        self._encoding = encoding

    @property
    def is_full(self) -> bool:
        return len(self.found) >= _MAX_MATCHES

    def search_file(self, path: str) -> bool:
        """Searches one file. True if it reached the end of the file."""
        try:
            with self._folder.open(path) as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError:  # not readable, or deleted since it was listed
            return True
        text = _decoded(data[:_MAX_BYTES], path, self._encoding)
        for number, line in enumerate((text or "").split("\n"), 1):
            for window in _windows(line.rstrip("\r"), _MAX_WINDOW_CHARS):
                if monotonic() >= self._until or self.is_full:
                    return False
                if self._matches(window):
                    self.found.append(f"{shown(path)}:{number}: {self._excerpt(window.strip())}")
                    break
        if len(data) > _MAX_BYTES and text is not None:
            self.notes.append(f"[{shown(path)}: only the first {_MAX_BYTES} bytes were searched]")
        return True

    def _excerpt(self, text: str) -> str:
        """A part of a long text that matches too, if one does."""
        return next(filter(self._matches, _windows(text, _MAX_SHOWN_LINE_CHARS)), text[:_MAX_SHOWN_LINE_CHARS])


def _windows(text: str, size: int) -> Iterator[str]:
    """Parts of a text that overlap by half, so that a match of up to half a part is in one of them. To `^` and `$`,
    each part is a line."""
    step = size // 2
    return (text[start : start + size] for start in range(0, max(1, len(text) - step), step))


def _decoded(data: bytes, path: str, declared: str | None) -> str | None:
    """The text; None for what is not text, or not known to be."""
    if is_binary(data[:_SNIFFED_BYTES], declared):
        return None
    try:
        encoding = _encoding(io.BytesIO(data), data[:_SNIFFED_BYTES], path, declared)
    except ValueError:
        return None
    return data.decode(encoding, errors="backslashreplace")


def _incomplete_note(is_whole: bool) -> list[str]:
    return [] if is_whole else ["[too many files: not all folders were searched]"]
