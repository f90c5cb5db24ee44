"""List of the files in the user's directory that agents get copies of, and of what git ignores there."""

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
_CACHE_FOLDERS = frozenset({b"node_modules", b".venv", b"venv", b".tox", b".nox", b".cache", b"__pycache__"}) | {
    b".%b_cache" % tool for tool in (b"mypy", b"pytest", b"ruff")
}
_MAX_SHOWN = 3
_MAX_IGNORE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Limits on the directory that is copied for each agent."""

    files: int = 200_000
    size: int = 2 * 2**30
    """Bytes."""

    def check(self, root: bytes, tree: Tree, advice: str) -> None:
        if not tree.is_whole or len(tree.entries) > self.files or tree.size > self.size:
            raise SpecError(
                f"workdir={os.fsdecode(root)!r} is too large to copy for each agent: more than {self.files:,} "
                f"files or {self.size / 2**30:g} GB. {advice}"
            )


@dataclass(frozen=True, slots=True)
class FileList:
    """Files of the user's directory."""

    root: bytes
    entries: dict[bytes, FileEntry] = field(default_factory=dict)
    excludes: bytes = b""
    """Patterns that git ignores there because of files elsewhere, as lines of an ignore file."""
    prefix: bytes = b""
    """Path within the repository, with a trailing slash; empty for the root of a repository and for a plain
    directory."""


async def list_folder(git: Git, root: bytes, limits: SizeLimits) -> FileList:
    """Raises SpecError if the directory is too large or cannot be read."""
    output = await git.run("rev-parse", "--is-inside-work-tree", "--show-prefix", cwd=root, codes=(0, 128))
    if output.code != 0 and "not a git repository" not in output.err:
        raise SpecError(f"workdir={os.fsdecode(root)!r} cannot be read as a git repository: {output.err}")
    if not output.out.startswith(b"true\n"):
        return FileList(root, await asyncio.to_thread(_list_plain_folder, root, limits))
    prefix = output.out.removeprefix(b"true\n").removesuffix(b"\n")
    user_excludes = await _user_excludes_file(git, root)
    entries = await _Repository(git, user_excludes, root, limits).entries()
    if prefix and not entries:  # the outer repository ignores it or does not know it
        return FileList(root, await asyncio.to_thread(_list_plain_folder, root, limits), prefix=prefix)
    return FileList(root, entries, await _outer_excludes(git, root, prefix, user_excludes), prefix)


def missing_workdir(workdir: str | Path) -> SpecError:
    return SpecError(
        f"workdir={str(workdir)!r} does not exist or is not a directory. Pass an existing directory, or None for an "
        "empty one."
    )


def unreadable(root: bytes, paths: Iterable[bytes]) -> SpecError:
    some = [os.fsdecode(os.path.join(root, path)) for path in paths]
    more = f" (and {len(some) - _MAX_SHOWN} more)" if len(some) > _MAX_SHOWN else ""
    names = ", ".join(map(repr, some[:_MAX_SHOWN]))
    return SpecError(
        f"workdir cannot be copied: {names}{more} cannot be read. Make it readable, or have git ignore it."
    )


def _list_plain_folder(root: bytes, limits: SizeLimits) -> dict[bytes, FileEntry]:
    tree = walk(root, limit=limits.files, max_bytes=limits.size, skipped=_HISTORIES)
    if not tree.is_whole:
        tree = walk(root, limit=limits.files, max_bytes=limits.size, skipped=_HISTORIES | _CACHE_FOLDERS)
    limits.check(
        root,
        tree,
        "Pass a smaller directory, or run `git init` there with a .gitignore that names what agents do not need.",
    )
    if tree.closed:
        raise unreadable(root, tree.closed)
    return tree.entries


@dataclass(frozen=True, slots=True)
class _Repository:
    """Files that git tracks or does not ignore. Nested repositories count as plain files."""

    git: Git
    user_excludes: Path
    root: bytes
    limits: SizeLimits

    async def entries(self) -> dict[bytes, FileEntry]:
        names = await self._names(b"")
        tree = Tree(await asyncio.to_thread(self._existing, names))
        self.limits.check(self.root, tree, "Have git ignore what agents do not need, or pass a directory inside it.")
        return tree.entries

    async def _names(self, below: bytes) -> list[bytes]:
        folder = os.path.join(self.root, below)
        where = (b"--git-dir=" + folder + b".git", b"--work-tree=" + folder) if below else ()
        output = await self.git.run(
            "ls-files",
            *("-z", "--cached", "--others", "--exclude-standard"),
            options=(*where, "-c", f"core.excludesFile={self.user_excludes}"),
            cwd=folder,
            codes=(0, 128) if below else (0,),
        )
        if "could not open directory" in output.err:
            raise SpecError(f"workdir cannot be copied: {output.err}. Make it readable, or have git ignore it.")
        if output.code != 0:  # not a repository: broken, or a submodule that was never fetched
            return await asyncio.to_thread(self._all_below, below)
        names, repositories = await asyncio.to_thread(self._split, below, output.out)
        for inner in repositories:
            names += await self._names(inner)
        return names

    def _split(self, below: bytes, output: bytes) -> tuple[list[bytes], list[bytes]]:
        """Files and nested repositories. Git lists only the names of the latter."""
        names = sorted({below + name for name in output.split(b"\0")} - {below})
        folders = {name for name in names if is_folder(os.path.join(self.root, name))}
        return [name for name in names if name not in folders], [name.rstrip(b"/") + b"/" for name in sorted(folders)]

    def _all_below(self, below: bytes) -> list[bytes]:
        tree = walk(os.path.join(self.root, below), limit=self.limits.files, max_bytes=self.limits.size)
        return [below + path for path in tree.entries]

    def _existing(self, names: Iterable[bytes]) -> dict[bytes, FileEntry]:
        """The files that exist: git also lists deleted ones and ones behind a link."""
        folders: dict[bytes, bool] = {b"": True}
        found = {
            path: stat_entry(os.path.join(self.root, path)) for path in names if self._is_real_folder(path, folders)
        }
        return {path: entry for path, entry in found.items() if entry is not None}

    def _is_real_folder(self, path: bytes, folders: dict[bytes, bool]) -> bool:
        parent = os.path.dirname(path)
        if parent not in folders:
            folders[parent] = self._is_real_folder(parent, folders) and is_folder(os.path.join(self.root, parent))
        return folders[parent]


async def _outer_excludes(git: Git, root: bytes, prefix: bytes, user_excludes: Path) -> bytes:
    """Ignore lines for a copy of `root`, which is at `prefix` in its repository, in order of precedence.
    `user_excludes`: file that applies to all of the user's repositories."""
    output = await git.run("rev-parse", "--git-path", "info/exclude", cwd=root)
    parts = [part for part in prefix.split(b"/") if part]
    top = os.path.join(root, *[b".."] * len(parts))
    files = [(os.fsencode(user_excludes), parts), (os.path.join(root, output.out.removesuffix(b"\n")), parts)]
    for depth in range(len(parts)):
        files.append((os.path.join(top, *parts[:depth], b".gitignore"), parts[depth:]))
    return await asyncio.to_thread(_join_excludes, files)


async def _user_excludes_file(git: Git, root: bytes) -> Path:
    """The file that the user has configured for all repositories. It may not exist."""
    output = await git.as_user("config", "--type=path", "--get", "core.excludesFile", cwd=root)
    if output.code == 0:
        return Path(os.fsdecode(os.path.join(root, output.out.removesuffix(b"\n"))))
    return _default_excludes_file()


def _lines_below(text: bytes, parts: Sequence[bytes]) -> bytes:
    """Rewrites lines of an ignore file for the directory `parts` below it."""
    lines = (_line_below(line, parts) for line in text.removeprefix(b"\xef\xbb\xbf").splitlines())
    return b"".join(line + b"\n" for line in lines if line)


def _line_below(line: bytes, parts: Sequence[bytes]) -> bytes:
    """Rewrites a line; empty if it is about other directories."""
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


def _default_excludes_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home, "git", "ignore")


def _join_excludes(files: Sequence[tuple[bytes, Sequence[bytes]]]) -> bytes:
    return b"".join(_lines_below(_read_text(path), below) for path, below in files)


def _read_text(path: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_IGNORE_BYTES)
    except OSError:
        return b""
