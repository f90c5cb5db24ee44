"""Template of the `.git` directory in working copies: one branch, one commit, no remote."""

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path

from .object_store import ObjectStore
from .tree import is_folder

_CONFIG = """
[core]
	autocrlf = false
	fsmonitor =
	protectNTFS = false
	protectHFS = false
[user]
	name = agent
	email = agent@localhost
[commit]
	gpgSign = false
[tag]
	gpgSign = false
[gc]
	auto = 0
[maintenance]
	auto = false
"""
"""Commits work without a prompt, no background process starts, and file names of any bytes are accepted."""
_ATTRIBUTES = "* -text -filter -ident !eol !working-tree-encoding\n"
"""Overrides attributes in the directory, so that contents stay unchanged."""
_ALTERNATES = Path("objects", "info", "alternates")


_PROGRAM_FILES = b".aider*\n"
"""Files that programs keep for themselves, which are not changes. Aider adds this line to .gitignore unless it is
already ignored. It comes first, so that a project can override it."""


async def create_seed_repo(store: ObjectStore, ref: str, excludes: bytes) -> None:
    """Raises ProgramFailed, OSError."""
    seed = store.folder / "seed"
    await store.git.run("init", "-q", "--template=", "--initial-branch=main", seed, cwd=store.folder)
    output = await store.run("rev-parse", "--verify", ref)
    await asyncio.to_thread(store.excludes.write_bytes, _PROGRAM_FILES + excludes)
    await asyncio.to_thread(_fill, seed / ".git", store, output.out)


def install_seed_repo(store: ObjectStore, copy: Path) -> None:
    shutil.copytree(store.folder / "seed", copy)


def detach(store: ObjectStore, copy: Path) -> None:
    """Copies the objects into the copy's `.git`, if the latter is intact."""
    objects = copy / ".git" / "objects"
    inner = (copy, copy / ".git", objects, objects / "info")
    if all(_is_folder(each) for each in inner):
        _link_all(store.objects, objects)
        (copy / ".git" / _ALTERNATES).unlink(missing_ok=True)


def _fill(seed: Path, store: ObjectStore, commit: bytes) -> None:
    with (seed / "config").open("a") as config:
        config.write(_CONFIG)
    (seed / "info").mkdir(exist_ok=True)
    (seed / "info" / "attributes").write_text(_ATTRIBUTES)
    shutil.copyfile(store.excludes, seed / "info" / "exclude")
    (seed / _ALTERNATES).write_text(f"{store.objects}\n")
    (seed / "refs" / "heads" / "main").write_bytes(commit)


def _link_all(source: Path, target: Path) -> None:
    """Links the files of one object directory into another. Object files are never rewritten."""
    for inner in source.iterdir():
        (target / inner.name).mkdir(exist_ok=True)
        for file in inner.iterdir() if _is_folder(target / inner.name) else ():
            with suppress(FileExistsError):
                _link(file, target / inner.name / file.name)


def _is_folder(path: Path) -> bool:
    return is_folder(os.fsencode(path))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # on another file system
        shutil.copyfile(source, target)
