"""Private repository that holds the snapshot and, for a while, the state of an agent's copy."""

import asyncio
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass as mutable_dataclass
from dataclasses import field
from pathlib import Path
from typing import BinaryIO, Self

from ...core.fast_dataclass import dataclass
from ...core.program_runtime import ProgramFailed
from .git import MOST_BYTES, Argument, Git, GitOutput
from .tree import FileEntry, erase

_WHO = b"batch-agent <batch-agent@localhost> 1000000000 +0000"
_NOTHING = b"0" * 40
_LINK = "120000"
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)
"""Among them: it is of another kind by now."""
_WHOLE = 2**20
"""Larger files are read in pieces of so many bytes."""


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Bare, and without a HEAD: git would read attributes from there."""

    git: Git
    folder: Path
    """The repository is in here, with what else is needed to make copies."""
    objects: Path
    """Where new objects go."""
    index: Path

    @classmethod
    async def create(cls, git: Git, folder: Path) -> Self:
        """Raises ProgramFailed."""
        store = cls(git, folder, folder / "store.git" / "objects", folder / "index")
        options = ("-q", "--bare", "--template=", "--initial-branch=none")
        await git.run("init", *options, store.path, cwd=folder)
        return store

    @property
    def path(self) -> Path:
        return self.folder / "store.git"

    @property
    def excludes(self) -> Path:
        """What git ignores in a copy, whatever is in it."""
        return self.folder / "excludes"

    async def run(
        self,
        command: str,
        *arguments: Argument,
        options: tuple[Argument, ...] = (),
        stdin: Iterable[bytes] | None = None,
        most: int = MOST_BYTES,
    ) -> GitOutput:
        """Raises ProgramFailed."""
        here = (f"--git-dir={self.path}", *options)
        env = {"GIT_OBJECT_DIRECTORY": str(self.objects), "GIT_INDEX_FILE": str(self.index)}
        return await self.git.run(command, *arguments, options=here, cwd=self.folder, stdin=stdin, env=env, most=most)

    @asynccontextmanager
    async def aside(self) -> AsyncIterator["ObjectStore"]:
        """The same, for one agent's work, of which nothing stays: agents may do the same at the same time, and git
        cannot put the same twice into one place at once. Raises OSError."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield await asyncio.to_thread(self._laid_out, folder)
        finally:
            await asyncio.to_thread(erase, bytes(folder))

    async def tree(self, files: "Import", deleted: Iterable[bytes] = ()) -> str:
        """The name of a tree: what the index has, but for these files, which is what it has from then on. Raises
        ProgramFailed, OSError."""
        with tempfile.NamedTemporaryFile(dir=self.folder) as marks:
            await self._import(files, f"--export-marks={marks.name}")
            names = await asyncio.to_thread(_names, Path(marks.name))
        options = ("-z", "--force-write-index", "--index-info")
        await self.run("update-index", *options, stdin=_lines(files, names, deleted))
        said = await self.run("write-tree")
        return said.out.decode().strip()

    async def commit(self, tree: str, ref: str, message: bytes) -> None:
        """Always of the same person at the same time. Raises ProgramFailed."""
        told = b"commit %b\nauthor %b\ncommitter %b\n" % (ref.encode(), _WHO, _WHO)
        told += b'data %d\n%b\nM 040000 %b ""\ndone\n' % (len(message), message, tree.encode())
        await self._import([told])

    async def _import(self, told: Iterable[bytes], *options: str) -> None:
        await self.run("fast-import", "--quiet", "--done", "--depth=0", *options, stdin=told)

    def _laid_out(self, folder: Path) -> "ObjectStore":
        objects = folder / "objects"
        for inner in ("info", "pack"):
            (objects / inner).mkdir(parents=True)
        (objects / "info" / "alternates").write_text(f"{self.objects}\n")
        shutil.copyfile(self.index, folder / "index")
        return ObjectStore(self.git, self.folder, objects, folder / "index")


@mutable_dataclass(slots=True)
class Import:
    """Stream for `git fast-import`: the bytes of files, which git does not read by itself, so that no filter, no line
    ending and no nested repository is in the way. It can be read once."""

    root: bytes
    entries: Mapping[bytes, FileEntry]
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

    def _file(self, path: bytes, entry: FileEntry) -> Iterator[bytes]:
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


def _names(marks: Path) -> dict[bytes, bytes]:
    """Names of objects by mark."""
    lines = (line.removeprefix(b":").partition(b" ") for line in marks.read_bytes().splitlines())
    return {mark: name for mark, _, name in lines}


def _lines(files: Import, names: dict[bytes, bytes], deleted: Iterable[bytes]) -> Iterator[bytes]:
    """Sorted, as git has them: it would move all that comes after, for each that does not come last."""
    for path in deleted:
        yield b"0 %b\t%b\0" % (_NOTHING, path)
    for path, mark in sorted((path, number) for number, path in enumerate(files.told, 1)):
        yield b"%b %b\t%b\0" % (files.entries[path].mode.encode(), names[b"%d" % mark], path)


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
