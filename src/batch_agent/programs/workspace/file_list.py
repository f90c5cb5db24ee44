"""List of the files in the user's directory that agents get a copy of, and of what git ignores there."""

import asyncio
import fnmatch
import os
from collections.abc import Iterable, Sequence
from dataclasses import field
from pathlib import Path

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from .git import Git
from .tree import FileEntry, Tree, is_folder, stat_entry, walk

_HISTORIES = frozenset({b".hg", b".svn", b".bzr", b".jj", b"_darcs", b"CVS"})
_HEAVY = frozenset({b"node_modules", b".venv", b"venv", b".tox", b".nox", b".cache", b"__pycache__"}) | {
    b".%b_cache" % tool for tool in (b"mypy", b"pytest", b"ruff")
}
_SHOWN = 3
_LARGEST_IGNORE = 2**20


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """How large a folder may be, as each agent gets a copy."""

    files: int = 200_000
    size: int = 2 * 2**30
    """Bytes."""

    def check(self, root: bytes, tree: Tree, advice: str) -> None:
        if not tree.is_whole or len(tree.entries) > self.files or tree.size > self.size:
            raise SpecError(
                f"workdir={os.fsdecode(root)!r} is too large to be copied for each agent: more than {self.files:,} "
                f"files or {self.size / 2**30:g} GB. {advice}"
            )


@dataclass(frozen=True, slots=True)
class FileList:
    """What is taken of a folder."""

    root: bytes
    entries: dict[bytes, FileEntry] = field(default_factory=dict)
    excludes: bytes = b""
    """What git ignores there because of something that is not in it, as lines of an ignore file."""
    prefix: bytes = b""
    """Where it lies in its repository, with a slash at its end; empty for a repository itself, for a plain folder."""


async def list_folder(git: Git, root: bytes, most: SizeLimits) -> FileList:
    """Raises SpecError for a folder that is too large, or that cannot be read."""
    said = await git.run("rev-parse", "--is-inside-work-tree", "--show-prefix", cwd=root, codes=(0, 128))
    if said.code != 0 and "not a git repository" not in said.err:
        raise SpecError(f"workdir={os.fsdecode(root)!r} cannot be read as a git repository: {said.err}")
    if not said.out.startswith(b"true\n"):
        return FileList(root, await asyncio.to_thread(_plain, root, most))
    prefix = said.out.removeprefix(b"true\n").removesuffix(b"\n")
    users = await _users_excludes(git, root)
    entries = await _Repository(git, users, root, most).entries()
    if prefix and not entries:  # the repository around it ignores it, or has nothing to do with it
        return FileList(root, await asyncio.to_thread(_plain, root, most), prefix=prefix)
    return FileList(root, entries, await _outer_excludes(git, root, prefix, users), prefix)


def unreadable(root: bytes, paths: Iterable[bytes]) -> SpecError:
    some = [os.fsdecode(os.path.join(root, path)) for path in paths]
    more = f" (and {len(some) - _SHOWN} more)" if len(some) > _SHOWN else ""
    names = ", ".join(map(repr, some[:_SHOWN]))
    return SpecError(
        f"workdir cannot be copied: {names}{more} cannot be read. Make it readable, or have git ignore it."
    )


def _plain(root: bytes, most: SizeLimits) -> dict[bytes, FileEntry]:
    tree = walk(root, most=most.files, most_bytes=most.size, skipped=_HISTORIES)
    if not tree.is_whole:
        tree = walk(root, most=most.files, most_bytes=most.size, skipped=_HISTORIES | _HEAVY)
    most.check(
        root, tree, "Give a smaller folder, or `git init` it with a .gitignore that names what agents do not need."
    )
    if tree.closed:
        raise unreadable(root, tree.closed)
    return tree.entries


@dataclass(frozen=True, slots=True)
class _Repository:
    """What git tracks, with what it does not ignore. Repositories inside of it count as plain files."""

    git: Git
    users: Path
    root: bytes
    most: SizeLimits

    async def entries(self) -> dict[bytes, FileEntry]:
        names = await self._names(b"")
        tree = Tree(await asyncio.to_thread(self._found, names))
        self.most.check(self.root, tree, "Have git ignore what agents do not need, or give a folder inside of it.")
        return tree.entries

    async def _names(self, below: bytes) -> list[bytes]:
        folder = os.path.join(self.root, below)
        where = (b"--git-dir=" + folder + b".git", b"--work-tree=" + folder) if below else ()
        said = await self.git.run(
            "ls-files",
            *("-z", "--cached", "--others", "--exclude-standard"),
            options=(*where, "-c", f"core.excludesFile={self.users}"),
            cwd=folder,
            codes=(0, 128) if below else (0,),
        )
        if "could not open directory" in said.err:
            raise SpecError(f"workdir cannot be copied: {said.err}. Make it readable, or have git ignore it.")
        if said.code != 0:  # it is none: broken, or a submodule that was never fetched
            return await asyncio.to_thread(self._all_below, below)
        names, repositories = await asyncio.to_thread(self._split, below, said.out)
        for inner in repositories:
            names += await self._names(inner)
        return names

    def _split(self, below: bytes, said: bytes) -> tuple[list[bytes], list[bytes]]:
        """Files, and the repositories inside, of which git tells only the name."""
        names = sorted({below + name for name in said.split(b"\0")} - {below})
        folders = {name for name in names if is_folder(os.path.join(self.root, name))}
        return [name for name in names if name not in folders], [name.rstrip(b"/") + b"/" for name in sorted(folders)]

    def _all_below(self, below: bytes) -> list[bytes]:
        tree = walk(os.path.join(self.root, below), most=self.most.files, most_bytes=self.most.size)
        return [below + path for path in tree.entries]

    def _found(self, names: Iterable[bytes]) -> dict[bytes, FileEntry]:
        """What is really there: git also names what was deleted, or lies behind a link by now."""
        folders: dict[bytes, bool] = {b"": True}
        found = {path: stat_entry(os.path.join(self.root, path)) for path in names if self._is_reached(path, folders)}
        return {path: entry for path, entry in found.items() if entry is not None}

    def _is_reached(self, path: bytes, folders: dict[bytes, bool]) -> bool:
        parent = os.path.dirname(path)
        if parent not in folders:
            folders[parent] = self._is_reached(parent, folders) and is_folder(os.path.join(self.root, parent))
        return folders[parent]


async def _outer_excludes(git: Git, root: bytes, prefix: bytes, users: Path) -> bytes:
    """Lines for a copy of `root`, which lies at `prefix` of a repository. `users` are those of all the user's
    repositories. What counts more comes later, as git has it."""
    said = await git.run("rev-parse", "--git-path", "info/exclude", cwd=root)
    parts = [part for part in prefix.split(b"/") if part]
    top = os.path.join(root, *[b".."] * len(parts))
    files = [(os.fsencode(users), parts), (os.path.join(root, said.out.removesuffix(b"\n")), parts)]
    for depth in range(len(parts)):
        files.append((os.path.join(top, *parts[:depth], b".gitignore"), parts[depth:]))
    return await asyncio.to_thread(_joined, files)


async def _users_excludes(git: Git, root: bytes) -> Path:
    """The file that the user named for all repositories, which need not be there."""
    said = await git.as_user("config", "--type=path", "--get", "core.excludesFile", cwd=root)
    if said.code == 0:
        return Path(os.fsdecode(os.path.join(root, said.out.removesuffix(b"\n"))))
    return _usual_excludes()


def _lines_below(text: bytes, parts: Sequence[bytes]) -> bytes:
    """Lines of an ignore file, as they read in a directory that lies `parts` below it."""
    lines = (_line_below(line, parts) for line in text.removeprefix(b"\xef\xbb\xbf").splitlines())
    return b"".join(line + b"\n" for line in lines if line)


def _line_below(line: bytes, parts: Sequence[bytes]) -> bytes:
    """Empty if it is about other folders."""
    sign = b"!" if line.startswith(b"!") else b""
    pattern = line.removeprefix(b"!")
    if line.startswith(b"#") or not parts or b"/" not in pattern.rstrip().rstrip(b"/"):
        return line
    steps = pattern.removeprefix(b"/").split(b"/")
    for part in parts:
        if steps[0] == b"**":
            break
        if not fnmatch.fnmatchcase(part, steps[0]) or not any(steps[1:]):
            return b""
        steps = steps[1:]
    return sign + b"/" + b"/".join(steps)


def _usual_excludes() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home, "git", "ignore")


def _joined(files: Sequence[tuple[bytes, Sequence[bytes]]]) -> bytes:
    return b"".join(_lines_below(_text(path), below) for path, below in files)


def _text(path: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST_IGNORE)
    except OSError:
        return b""
