"""The repository of ours that has the snapshot, with what agents made of it."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .copy_git import Git
from .copy_import import Import

_WHO = b"batch-agent <batch-agent@localhost> 1000000000 +0000"
_NOTHING = b"0" * 40


@dataclass(frozen=True, slots=True)
class Store:
    """Bare, and without a HEAD: git would read attributes from there."""

    git: Git
    folder: Path
    """The repository is in here, with what else is needed to make copies."""

    @property
    def path(self) -> Path:
        return self.folder / "store.git"

    @property
    def here(self) -> tuple[str]:
        """Has git work on it."""
        return (f"--git-dir={self.path}",)

    @property
    def index(self) -> Path:
        """Of the first tree that was kept."""
        return self.folder / "index"

    @property
    def excludes(self) -> Path:
        """What git ignores in a copy, whatever is in it."""
        return self.folder / "excludes"

    async def create(self) -> None:
        """Raises ProgramFailed."""
        options = ("-q", "--bare", "--template=", "--initial-branch=none")
        await self.git.run("init", *options, self.path, cwd=self.folder)

    async def keep_first(self, files: Import) -> str:
        """The name of a tree that has these files. Raises ProgramFailed, OSError."""
        return await self._tree(files, (), self.index)

    async def keep(self, files: Import, deleted: Iterable[bytes]) -> str:
        """The name of a tree that is the first one but for these files. Raises ProgramFailed, OSError."""
        descriptor, index = tempfile.mkstemp(dir=self.folder)
        os.close(descriptor)
        try:
            await asyncio.to_thread(shutil.copyfile, self.index, index)
            return await self._tree(files, deleted, Path(index))
        finally:
            os.unlink(index)

    async def commit(self, tree: str, ref: str, message: bytes) -> None:
        """Always of the same person at the same time. Raises ProgramFailed."""
        told = b"commit %b\nauthor %b\ncommitter %b\n" % (ref.encode(), _WHO, _WHO)
        told += b'data %d\n%b\nM 040000 %b ""\ndone\n' % (len(message), message, tree.encode())
        await self._import([told])

    async def _tree(self, files: Import, deleted: Iterable[bytes], index: Path) -> str:
        with tempfile.NamedTemporaryFile(dir=self.folder) as marks:
            await self._import(files, f"--export-marks={marks.name}")
            names = await asyncio.to_thread(_names, Path(marks.name))
        lines = _lines(files, names, deleted)
        options = ("-z", "--force-write-index", "--index-info")
        await self.git.run("update-index", *options, options=self.here, cwd=self.folder, stdin=lines, index=index)
        said = await self.git.run("write-tree", options=self.here, cwd=self.folder, index=index)
        return said.out.decode().strip()

    async def _import(self, told: Iterable[bytes], *options: str) -> None:
        always = ("--quiet", "--done", "--depth=0")
        await self.git.run("fast-import", *always, *options, options=self.here, cwd=self.folder, stdin=told)


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
