"""Folders and git repositories for the tests of workspaces."""

import asyncio
import os
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from batch_agent.programs.workspace.changes import DiffLimits
from batch_agent.programs.workspace.file_list import SizeLimits
from batch_agent.programs.workspace.snapshot import Snapshot
from batch_agent.programs.workspace.workspace import Workspaces

_NOBODY = 65534
_WHO = {f"GIT_{who}_{what}": "someone" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

Contents = dict[bytes, tuple[str, bytes]]


def git(folder: Path, *arguments: str, env: Mapping[str, str] = _ALONE | _WHO, ok: bool = True) -> str:
    """As somebody would type it."""
    done = subprocess.run(["git", *arguments], cwd=folder, env={**os.environ, **env}, capture_output=True, timeout=60)
    assert not ok or done.returncode == 0, done.stderr
    return (done.stdout if ok else done.stdout + done.stderr).decode(errors="replace")


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def repository(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    write(folder, files)
    git(folder, "init", "-q", "--initial-branch=main", "--template=")
    git(folder, "add", "-A", "--force")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def contents(folder: Path) -> Contents:
    """All files and links, but for those of git: their modes as git has them, and what is in them."""
    found: Contents = {}
    root = os.fsencode(folder)
    for below, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != b".git"]
        for name in [*files, *(each for each in folders if os.path.islink(os.path.join(below, each)))]:
            path = os.path.join(below, name)
            key = os.path.relpath(path, root)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found[key] = ("120000", os.readlink(path))
            elif stat.S_ISREG(mode) and name != b".git":
                data = Path(os.fsdecode(path)).read_bytes()
                found[key] = ("100755" if mode & 0o100 else "100644", data)
    return found


def stamps(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Whatever would tell that somebody wrote there."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_mtime_ns, status.st_ctime_ns, status.st_mode, data)
    return found


async def copies_of(
    workdir: Path | None, tmp_path: Path, *, most: SizeLimits | None = None, bounds: DiffLimits | None = None
) -> Workspaces:
    ours = tmp_path / "ours"
    ours.mkdir()
    original = await Snapshot.take(workdir, ours, most or SizeLimits())
    return Workspaces(original, tmp_path / "copies", bounds or DiffLimits())


async def copied(workdir: Path | None, tmp_path: Path) -> Contents:
    copies = await copies_of(workdir, tmp_path)
    copy = await copies.make("one")
    assert git(copy.path, "status", "--porcelain") == ""
    return contents(copy.path)


def marking(path: Path, marker: Path) -> str:
    """A program that leaves a trace."""
    path.write_text(f"#!/bin/sh\ntouch '{marker}'\ncat\n")
    path.chmod(0o755)
    return str(path)


@asynccontextmanager
async def unprivileged() -> AsyncIterator[Path]:
    """A folder of somebody from whom a file can be withheld, as nothing can from root."""
    is_root = os.geteuid() == 0
    await asyncio.to_thread(int)  # what Python imports for this, it may not find as somebody else
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        if is_root:
            os.seteuid(_NOBODY)
        try:
            yield Path(folder)
        finally:
            if is_root:
                os.seteuid(0)
