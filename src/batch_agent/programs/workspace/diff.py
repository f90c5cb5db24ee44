"""What is different between the snapshot and the state of a copy, as lines of a patch."""

import itertools
import re
import tempfile
from collections.abc import Iterable, Sequence

from ...core.fast_dataclass import dataclass
from ...core.results import ChangeKind, FileChange
from .object_store import ObjectStore
from .snapshot import Snapshot

_KINDS: dict[bytes, ChangeKind] = {b"A": "added", b"D": "deleted"}
_OTHER_TYPE = b"T"
"""Such as a link in place of a file: a patch deletes the one, then adds the other."""
_SECTION = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_SPECIAL = re.compile(rb"[\\*?\[\]]")
_ODD = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')
_PATCH = ("-r", "-p", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
_ATTEMPTS = 4


def shown(path: bytes) -> str:
    """Any name as text that can be stored."""
    return path.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Difference:
    """One file."""

    path: bytes
    status: bytes
    added: int = 0
    removed: int = 0

    @property
    def change(self) -> FileChange:
        return FileChange(shown(self.path), _KINDS.get(self.status, "modified"), self.added, self.removed)


@dataclass(frozen=True, slots=True)
class TreeComparison:
    """Of the snapshot with another tree."""

    original: Snapshot
    store: ObjectStore
    tree: str

    async def differences(self, largest: int) -> list[Difference]:
        """Lines are counted in files of up to `largest` bytes. Raises ProgramFailed."""
        options = ("-r", "-z", "--raw", "--numstat", "--no-renames")
        setting = ("-c", f"core.bigFileThreshold={largest}")
        said = await self.store.run("diff-tree", *options, self.original.tree, self.tree, options=setting)
        return read_differences(said.out)

    async def patch(self, files: Sequence[Difference], most: int) -> tuple[str, bool]:
        """The patch, and whether something is missing in it. A file that is no UTF-8 is in it as a binary one is, so
        that the patch is a text that loses nothing. Raises ProgramFailed."""
        foreign: set[bytes] = set()
        for _ in range(_ATTEMPTS):
            sections, is_cut = await self._sections(foreign, most)
            found = _foreign(files, sections)
            if not found:
                return b"".join(sections).decode(), is_cut
            foreign |= found
        return b"".join(section for section in sections if _is_text(section)).decode(), True

    async def _sections(self, binary: Iterable[bytes], most: int) -> tuple[list[bytes], bool]:
        """One for each file, as far as they are whole."""
        prefixes = (b"--src-prefix=a/" + self.original.prefix, b"--dst-prefix=b/" + self.original.prefix)
        with tempfile.NamedTemporaryFile(dir=self.store.folder) as attributes:
            attributes.write(b"".join(_pattern(path) + b" -diff\n" for path in binary))
            attributes.flush()
            said = await self.store.run(
                "diff-tree",
                *(*_PATCH, *prefixes, self.original.tree, self.tree),
                options=("-c", f"core.attributesFile={attributes.name}"),
                most=most,
            )
        sections = [section for section in _SECTION.split(said.out) if section]
        return sections[:-1] if said.is_cut else sections, said.is_cut


def read_differences(said: bytes) -> list[Difference]:
    """`:MODES IDS STATUS` and a path for each file, then the lines `ADDED REMOVED PATH`, all ended by a zero byte."""
    status: dict[bytes, bytes] = {}
    counts: dict[bytes, tuple[int, int]] = {}
    fields = iter(said.split(b"\0"))
    for field in fields:
        if field.startswith(b":"):
            status[next(fields)] = field[-1:]
        elif field:
            added, removed, path = field.split(b"\t", 2)
            counts[path] = (0, 0) if added == b"-" else (int(added), int(removed))
    return [Difference(path, status[path], *counts.get(path, (0, 0))) for path in status]


def _pattern(path: bytes) -> bytes:
    """Of this file alone, as a line of attributes has it."""
    literal = b"/" + _SPECIAL.sub(rb"\\\g<0>", path)
    return b'"%b"' % _ODD.sub(lambda odd: b"\\%03o" % odd[0][0], literal)


def _foreign(files: Iterable[Difference], sections: Iterable[bytes]) -> set[bytes]:
    """Those whose sections are no text. The sections are in the order of the files."""
    left = iter(sections)
    found = set()
    for file in files:
        own = list(itertools.islice(left, 2 if file.status == _OTHER_TYPE else 1))
        if not all(map(_is_text, own)):
            found.add(file.path)
    return found


def _is_text(section: bytes) -> bool:
    try:
        section.decode()
    except UnicodeDecodeError:
        return False
    return True
