"""Files of a folder as objects of a repository, byte for byte: git reads none of them by itself, so that no filter, no
line ending, no nested repository is in the way."""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from ..core.runtime import ProgramFailed
from .copy_tree import Entry

_LINK = "120000"
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)
"""Among them: it is of another kind by now."""
_WHOLE = 2**20
"""Larger files are read in pieces of so many bytes."""


@dataclass(slots=True)
class Import:
    """What `git fast-import` is told. It can be told once."""

    root: bytes
    entries: Mapping[bytes, Entry]
    is_ours: bool = False
    """Whether files that their owner may not read are given that right."""
    told: list[bytes] = field(default_factory=list)
    """Paths, each by its mark, from 1 on. What is gone meanwhile is left out."""
    unread: list[bytes] = field(default_factory=list)
    """Paths that cannot be read; they are left out."""

    def __iter__(self) -> Iterator[bytes]:
        """Reads files as it goes, each when it is its turn."""
        for path, entry in self.entries.items():
            yield from self._file(path, entry)
        yield b"done\n"

    def _file(self, path: bytes, entry: Entry) -> Iterator[bytes]:
        whole = os.path.join(self.root, path)
        try:
            content = os.readlink(whole) if entry.mode == _LINK else self._open(whole)
        except OSError as error:
            if error.errno not in _GONE:
                self.unread.append(path)
            return
        self.told.append(path)
        head = b"blob\nmark :%d\n" % len(self.told)
        if isinstance(content, bytes):
            yield b"%bdata %d\n%b\n" % (head, len(content), content)
        else:
            yield from _content(path, head, content)

    def _open(self, path: bytes) -> BinaryIO:
        """Neither waits for the other end of a pipe, nor follows a link that was put there meanwhile."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except PermissionError:
            if not self.is_ours:
                raise
            os.chmod(path, os.lstat(path).st_mode | stat.S_IRUSR)
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise FileNotFoundError(errno.ENOENT, "no ordinary file any more")
        return os.fdopen(file, "rb")


def _content(path: bytes, head: bytes, file: BinaryIO) -> Iterator[bytes]:
    with file:
        data = file.read(_WHOLE)
        size = os.fstat(file.fileno()).st_size if len(data) == _WHOLE else len(data)
        yield b"%bdata %d\n" % (head, size)
        while size and data:
            yield data
            size -= len(data)
            data = file.read(min(size, _WHOLE))
        if size:
            raise ProgramFailed(f"{os.fsdecode(path)!r} was cut off while it was read.", retryable=True)
    yield b"\n"
