"""Private repository that holds the snapshot and, temporarily, the state of an agent's copy."""

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
from .git import MAX_OUTPUT_BYTES, Argument, Git, GitOutput
from .tree import FileEntry, erase

_COMMITTER = b"batch-agent <batch-agent@localhost> 1000000000 +0000"
_NULL_ID = b"0" * 40
_LINK = "120000"
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)
"""The file was removed or replaced by another kind."""
_CHUNK_BYTES = 2**20
"""Larger files are read in chunks of this size."""


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A bare repository without a HEAD, because git would read attributes from it."""

    git: Git
    folder: Path
    """Directory that contains the repository and everything else needed to create copies."""
    objects: Path
    """Directory of new objects."""
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
        """File with the patterns that git ignores in every copy."""
        return self.folder / "excludes"

    async def run(
        self,
        command: str,
        *arguments: Argument,
        options: tuple[Argument, ...] = (),
        stdin: Iterable[bytes] | None = None,
        max_bytes: int = MAX_OUTPUT_BYTES,
    ) -> GitOutput:
        """Raises ProgramFailed."""
        here = (f"--git-dir={self.path}", *options)
        env = {"GIT_OBJECT_DIRECTORY": str(self.objects), "GIT_INDEX_FILE": str(self.index)}
        return await self.git.run(
            command, *arguments, options=here, cwd=self.folder, stdin=stdin, env=env, max_bytes=max_bytes
        )

    @asynccontextmanager
    async def scratch_store(self) -> AsyncIterator["ObjectStore"]:
        """A temporary store on top of this one, for the changes of one agent. Agents may add the same objects at the
        same time, and git cannot write an object twice concurrently. Raises OSError."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield await asyncio.to_thread(self._create_scratch, folder)
        finally:
            await asyncio.to_thread(erase, bytes(folder))

    async def tree(self, files: "Import", deleted: Iterable[bytes] = ()) -> str:
        """Updates the index with these files, and returns the object name of its tree. Raises ProgramFailed,
        OSError."""
        with tempfile.NamedTemporaryFile(dir=self.folder) as marks:
            await self._import(files, f"--export-marks={marks.name}")
            names = await asyncio.to_thread(_names, Path(marks.name))
        options = ("-z", "--force-write-index", "--index-info")
        await self.run("update-index", *options, stdin=_lines(files, names, deleted))
        output = await self.run("write-tree")
        return output.out.decode().strip()

    async def commit(self, tree: str, ref: str, message: bytes) -> None:
        """Creates a commit, always with the same author and time. Raises ProgramFailed."""
        commands = b"commit %b\nauthor %b\ncommitter %b\n" % (ref.encode(), _COMMITTER, _COMMITTER)
        commands += b'data %d\n%b\nM 040000 %b ""\ndone\n' % (len(message), message, tree.encode())
        await self._import([commands])

    async def _import(self, commands: Iterable[bytes], *options: str) -> None:
        await self.run("fast-import", "--quiet", "--done", "--depth=0", *options, stdin=commands)

    def _create_scratch(self, folder: Path) -> "ObjectStore":
        objects = folder / "objects"
        for inner in ("info", "pack"):
            (objects / inner).mkdir(parents=True)
        (objects / "info" / "alternates").write_text(f"{self.objects}\n")
        shutil.copyfile(self.index, folder / "index")
        return ObjectStore(self.git, self.folder, objects, folder / "index")


@mutable_dataclass(slots=True)
class Import:
    """Input stream for `git fast-import` with the contents of files. Git does not read the files itself, so no filter,
    line-ending conversion or nested repository interferes. Can be iterated once."""

    root: bytes
    entries: Mapping[bytes, FileEntry]
    make_readable: bool = False
    """Whether to add the owner's read permission to files that lack it."""
    imported: list[bytes] = field(default_factory=list)
    """Imported paths by mark, starting at 1. Files that have disappeared are omitted."""
    unread: list[bytes] = field(default_factory=list)
    """Paths that are omitted because they cannot be read."""

    def __iter__(self) -> Iterator[bytes]:
        """Reads each file only when it is needed."""
        for path, entry in self.entries.items():
            yield from self._file(path, entry)
        yield b"done\n"

    def _file(self, path: bytes, entry: FileEntry) -> Iterator[bytes]:
        full_path = os.path.join(self.root, path)
        try:
            content = os.readlink(full_path) if entry.mode == _LINK else self._open(full_path)
        except OSError as error:
            if error.errno not in _GONE:
                self.unread.append(path)
            return
        self.imported.append(path)
        head = b"blob\nmark :%d\n" % len(self.imported)
        if isinstance(content, bytes):
            yield b"%bdata %d\n%b\n" % (head, len(content), content)
        else:
            yield from _content(path, head, content)

    def _open(self, path: bytes) -> BinaryIO:
        """Opens a file without blocking on a pipe or following a link that has replaced it."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except PermissionError:
            if not self.make_readable:
                raise
            os.chmod(path, os.lstat(path).st_mode | stat.S_IRUSR)
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise FileNotFoundError(errno.ENOENT, "not a regular file any more")
        return os.fdopen(file, "rb")


def _names(marks: Path) -> dict[bytes, bytes]:
    """Object names by mark."""
    lines = (line.removeprefix(b":").partition(b" ") for line in marks.read_bytes().splitlines())
    return {mark: name for mark, _, name in lines}


def _lines(files: Import, names: dict[bytes, bytes], deleted: Iterable[bytes]) -> Iterator[bytes]:
    """Lines sorted as in git's index, which is slow to insert anywhere but at its end."""
    for path in deleted:
        yield b"0 %b\t%b\0" % (_NULL_ID, path)
    for path, mark in sorted((path, number) for number, path in enumerate(files.imported, 1)):
        yield b"%b %b\t%b\0" % (files.entries[path].mode.encode(), names[b"%d" % mark], path)


def _content(path: bytes, head: bytes, file: BinaryIO) -> Iterator[bytes]:
    with file:
        data = file.read(_CHUNK_BYTES)
        size = os.fstat(file.fileno()).st_size if len(data) == _CHUNK_BYTES else len(data)
        yield b"%bdata %d\n" % (head, size)
        while size and data:
            yield data
            size -= len(data)
            data = file.read(min(size, _CHUNK_BYTES))
        if size:
            raise ProgramFailed(f"{os.fsdecode(path)!r} was truncated while it was read.", retryable=True)
    yield b"\n"
