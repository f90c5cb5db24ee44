"""What git ignores in a folder because of something that lies outside of it."""

import asyncio
import fnmatch
import os
from collections.abc import Sequence
from pathlib import Path

from .copy_git import Git

_LARGEST = 2**20


async def outer_excludes(git: Git, root: bytes, prefix: bytes, users: Path) -> bytes:
    """Lines for a copy of `root`, which lies at `prefix` of a repository. `users` are those of all the user's
    repositories. What counts more comes later, as git has it."""
    said = await git.run("rev-parse", "--git-path", "info/exclude", cwd=root)
    parts = [part for part in prefix.split(b"/") if part]
    top = os.path.join(root, *[b".."] * len(parts))
    files = [(os.fsencode(users), parts), (os.path.join(root, said.out.removesuffix(b"\n")), parts)]
    for depth in range(len(parts)):
        files.append((os.path.join(top, *parts[:depth], b".gitignore"), parts[depth:]))
    return await asyncio.to_thread(_joined, files)


async def users_excludes(git: Git, root: bytes) -> Path:
    """The file that the user named for all repositories, which need not be there."""
    said = await git.as_user("config", "--type=path", "--get", "core.excludesFile", cwd=root)
    if said.code == 0:
        return Path(os.fsdecode(os.path.join(root, said.out.removesuffix(b"\n"))))
    return _usual_excludes()


def moved(text: bytes, parts: Sequence[bytes]) -> bytes:
    """The lines of an ignore file for a folder that lies `parts` below it."""
    lines = (_moved(line, parts) for line in text.removeprefix(b"\xef\xbb\xbf").splitlines())
    return b"".join(line + b"\n" for line in lines if line)


def _moved(line: bytes, parts: Sequence[bytes]) -> bytes:
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
    return b"".join(moved(_text(path), below) for path, below in files)


def _text(path: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST)
    except OSError:
        return b""
