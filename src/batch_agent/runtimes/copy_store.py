"""The repository of ours that has the snapshot; beside it, for a while, what an agent made of that."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from ..core.quick import dataclass
from .copy_git import MOST_BYTES, Argument, Git, Said
from .copy_import import Import
from .copy_tree import erase

_WHO = b"batch-agent <batch-agent@localhost> 1000000000 +0000"
_NOTHING = b"0" * 40


@dataclass(frozen=True, slots=True)
class Store:
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
    ) -> Said:
        """Raises ProgramFailed."""
        here = (f"--git-dir={self.path}", *options)
        env = {"GIT_OBJECT_DIRECTORY": str(self.objects), "GIT_INDEX_FILE": str(self.index)}
        return await self.git.run(command, *arguments, options=here, cwd=self.folder, stdin=stdin, env=env, most=most)

    @asynccontextmanager
    async def aside(self) -> AsyncIterator["Store"]:
        """The same, for one agent's work, of which nothing stays: agents may do the same at the same time, and git
        cannot put the same twice into one place at once. Raises OSError."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield await asyncio.to_thread(self._laid_out, folder)
        finally:
            await asyncio.to_thread(erase, bytes(folder))

    async def tree(self, files: Import, deleted: Iterable[bytes] = ()) -> str:
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

    def _laid_out(self, folder: Path) -> "Store":
        objects = folder / "objects"
        for inner in ("info", "pack"):
            (objects / inner).mkdir(parents=True)
        (objects / "info" / "alternates").write_text(f"{self.objects}\n")
        shutil.copyfile(self.index, folder / "index")
        return Store(self.git, self.folder, objects, folder / "index")


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
