"""Diff between the snapshot and a working copy, as a patch."""

import itertools
import re
import tempfile
from collections.abc import Iterable, Sequence

from ...core.fast_dataclass import dataclass
from ...core.results import ChangeKind, FileChange
from .object_store import ObjectStore
from .snapshot import Snapshot

_KINDS: dict[bytes, ChangeKind] = {b"A": "added", b"D": "deleted"}
_TYPE_CHANGED = b"T"
"""For example, a link instead of a file: the patch deletes one and adds the other."""
_SECTION = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_GLOB_CHARACTERS = re.compile(rb"[\\*?\[\]]")
_QUOTED_BYTES = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')
_PATCH = ("-r", "-p", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
_ATTEMPTS = 4


def display_path(path: bytes) -> str:
    """Converts any file name to text that can be stored."""
    return path.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Difference:
    """One changed file."""

    path: bytes
    status: bytes
    added: int = 0
    removed: int = 0

    @property
    def change(self) -> FileChange:
        return FileChange(display_path(self.path), _KINDS.get(self.status, "modified"), self.added, self.removed)


@dataclass(frozen=True, slots=True)
class TreeComparison:
    """Comparison of the snapshot with another tree."""

    snapshot: Snapshot
    store: ObjectStore
    tree: str

    async def differences(self, max_file_bytes: int) -> list[Difference]:
        """The changed files, with line counts for files of up to `max_file_bytes`. Raises ProgramFailed."""
        options = ("-r", "-z", "--raw", "--numstat", "--no-renames")
        setting = ("-c", f"core.bigFileThreshold={max_file_bytes}")
        output = await self.store.run("diff-tree", *options, self.snapshot.tree, self.tree, options=setting)
        return read_differences(output.out)

    async def patch(self, files: Sequence[Difference], max_bytes: int) -> tuple[str, bool]:
        """The patch, and whether it is incomplete. Files that are not UTF-8 are included as binary, so the patch is
        text without loss. Raises ProgramFailed."""
        binary: set[bytes] = set()
        for _ in range(_ATTEMPTS):
            sections, is_cut = await self._sections(binary, max_bytes)
            found = _not_utf8(files, sections)
            if not found:
                return b"".join(sections).decode(), is_cut
            binary |= found
        return b"".join(section for section in sections if _is_text(section)).decode(), True

    async def _sections(self, binary: Iterable[bytes], max_bytes: int) -> tuple[list[bytes], bool]:
        """One complete section per file."""
        prefixes = (b"--src-prefix=a/" + self.snapshot.prefix, b"--dst-prefix=b/" + self.snapshot.prefix)
        with tempfile.NamedTemporaryFile(dir=self.store.folder) as attributes:
            attributes.write(b"".join(_pattern(path) + b" -diff\n" for path in binary))
            attributes.flush()
            output = await self.store.run(
                "diff-tree",
                *(*_PATCH, *prefixes, self.snapshot.tree, self.tree),
                options=("-c", f"core.attributesFile={attributes.name}"),
                max_bytes=max_bytes,
            )
        sections = [section for section in _SECTION.split(output.out) if section]
        return sections[:-1] if output.is_cut else sections, output.is_cut


def read_differences(output: bytes) -> list[Difference]:
    """Parses `:MODES IDS STATUS` and a path per file, then `ADDED REMOVED PATH`, all NUL-terminated."""
    status: dict[bytes, bytes] = {}
    counts: dict[bytes, tuple[int, int]] = {}
    fields = iter(output.split(b"\0"))
    for field in fields:
        if field.startswith(b":"):
            status[next(fields)] = field[-1:]
        elif field:
            added, removed, path = field.split(b"\t", 2)
            counts[path] = (0, 0) if added == b"-" else (int(added), int(removed))
    return [Difference(path, status[path], *counts.get(path, (0, 0))) for path in status]


def _pattern(path: bytes) -> bytes:
    """A pattern for an attributes file that matches only this file."""
    literal = b"/" + _GLOB_CHARACTERS.sub(rb"\\\g<0>", path)
    return b'"%b"' % _QUOTED_BYTES.sub(lambda found: b"\\%03o" % found[0][0], literal)


def _not_utf8(files: Iterable[Difference], sections: Iterable[bytes]) -> set[bytes]:
    """Files whose sections are not UTF-8. The sections are in the order of the files."""
    left = iter(sections)
    found = set()
    for file in files:
        own = list(itertools.islice(left, 2 if file.status == _TYPE_CHANGED else 1))
        if not all(map(_is_text, own)):
            found.add(file.path)
    return found


def _is_text(section: bytes) -> bool:
    try:
        section.decode()
    except UnicodeDecodeError:
        return False
    return True
