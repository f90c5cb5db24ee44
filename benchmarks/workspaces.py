"""Working copies of coding agents, two ways: a scan of our own that hands git the bytes, and `git add -A`.

Both keep the snapshot in a private repository, check a copy out with `git read-tree`, and compare trees with
`git diff-tree`. They differ in how the files of a copy become a tree:

- `scan`: `batch_agent.programs.workspace`. Python lists the copy, decides by inode and change time which files to read,
  and feeds those to `git fast-import`. Git never opens a file of the copy.
- `add`: `git --git-dir=PRIVATE --work-tree=COPY add -A`, with a private index. Git lists and reads the copy.

    python -m benchmarks.workspaces [--files 5000] [--copies 20] [--rounds 3] [--out FILE]

Each way of each round runs in a process of its own, in turns. Results are medians of the rounds.
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from batch_agent.core.results import Changes
from batch_agent.programs.workspace.changes import DiffLimits
from batch_agent.programs.workspace.diff import TreeComparison
from batch_agent.programs.workspace.file_list import FileList, SizeLimits, list_folder
from batch_agent.programs.workspace.git import find_git
from batch_agent.programs.workspace.object_store import ObjectStore
from batch_agent.programs.workspace.seed_repo import create_seed_repo, install_seed_repo
from batch_agent.programs.workspace.snapshot import Snapshot
from batch_agent.programs.workspace.tree import erase, is_folder
from batch_agent.programs.workspace.workspace import Workspaces, folder_name
from benchmarks import report
from benchmarks.peers.work import memory_kb
from benchmarks.rounds import in_own_process, median_of

_REF = "refs/heads/main"
_ATTRIBUTES = "* -text -filter -ident !eol !working-tree-encoding\n"
_BOUNDS = DiffLimits()
WAYS = ("scan", "add")


@dataclass(frozen=True, slots=True)
class GitCopy:
    """A working copy of the `add` way."""

    path: Path
    index: Path
    """Private: the agent cannot reach it."""


@dataclass(frozen=True, slots=True)
class GitCopies:
    """Working copies that git itself lists and reads, with its directory and index outside of the copy."""

    original: Snapshot
    root: Path
    bounds: DiffLimits = _BOUNDS

    @classmethod
    async def take(
        cls, workdir: Path | None, folder: Path, root: Path, most: SizeLimits, bounds: DiffLimits = _BOUNDS
    ) -> Self:
        """Commits the listed files of `workdir` to a private repository in `folder`. Git reads them."""
        git = await find_git(folder)
        listing = FileList(os.fsencode(folder))
        if workdir is not None:
            listing = await list_folder(git, os.fsencode(workdir.resolve()), most)
        store = await ObjectStore.create(git, folder)
        _pin_attributes(store.path)
        paths = b"".join(path + b"\0" for path in listing.entries)
        options = ("-z", "--add", "--force-write-index", "--stdin")
        await _in(store, listing.root, store.index, "update-index", *options, stdin=paths)
        tree = (await store.run("write-tree")).out.decode().strip()
        await store.commit(tree, _REF, b"The folder as it was given")
        await store.run("repack", "-a", "-d", "-q", "--window=0")  # loose objects make each copy twice as slow
        await create_seed_repo(store, _REF, listing.excludes)
        places = {path: number for number, path in enumerate(listing.entries)}
        sizes = array("Q", (entry.size for entry in listing.entries.values()))
        return cls(Snapshot(store, tree, places, sizes, listing.prefix), root, bounds)

    async def make(self, name: str) -> GitCopy:
        """Checks a copy out, and keeps its index."""
        store, path = self.original.store, self.root / folder_name(name)
        await asyncio.to_thread(self._place, path)
        where = (f"--git-dir={path / '.git'}", f"--work-tree={path}")
        await store.git.run("read-tree", "-m", "-u", "HEAD", options=where, cwd=path)
        index = store.folder / f"{path.name}.index"
        shutil.copy2(path / ".git" / "index", index)  # with its time, by which git knows which entries are racy
        return GitCopy(path, index)

    async def changes(self, copy: GitCopy) -> Changes:
        """All that `git add -A` finds, as a patch."""
        if not is_folder(os.fsencode(copy.path)):
            await asyncio.to_thread(_empty, copy.path)
        async with self.original.store.scratch_store() as store:
            await _in(store, os.fsencode(copy.path), copy.index, "add", "-A")
            said = await _in(store, os.fsencode(copy.path), copy.index, "write-tree")
            comparison = TreeComparison(self.original, store, said.decode().strip())
            different = await comparison.differences(self.bounds.file)
            if not different:
                return Changes()
            patch, is_cut = await comparison.patch(different, self.bounds.patch)
        files = sorted((each.change for each in different), key=lambda change: change.path)
        return Changes(tuple(files), patch, is_cut)

    def _place(self, path: Path) -> None:
        self.root.mkdir(exist_ok=True)
        erase(os.fsencode(path))
        install_seed_repo(self.original.store, path)


def _empty(path: Path) -> None:
    erase(os.fsencode(path))
    path.mkdir()


def _pin_attributes(repository: Path) -> None:
    """Attributes of the repository count more than those of the work tree: no filter, no line endings."""
    (repository / "info").mkdir(exist_ok=True)
    (repository / "info" / "attributes").write_text(_ATTRIBUTES)


async def _in(
    store: ObjectStore, folder: bytes, index: Path, command: str, *arguments: str, stdin: bytes = b""
) -> bytes:
    """Runs git on `folder` with the private directory, index and excludes."""
    settings = ("-c", "core.bare=false", "-c", f"core.excludesFile={store.excludes}")
    options = (f"--git-dir={store.path}", b"--work-tree=" + folder, *settings)
    env = {"GIT_OBJECT_DIRECTORY": str(store.objects), "GIT_INDEX_FILE": str(index)}
    said = await store.git.run(command, *arguments, options=options, cwd=folder, stdin=[stdin], env=env)
    return said.out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=5_000)
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(asyncio.run(_measured(options.child, options.files, options.copies))))
        return
    work = {"files": options.files, "copies": options.copies, "rounds": options.rounds}
    numbers = {"work": work, "git": _git_version(), "ways": _compared(options.files, options.copies, options.rounds)}
    print(report.write("working_copies", numbers, options.out))


def _compared(files: int, copies: int, rounds: int) -> dict[str, dict[str, float]]:
    measured: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    work = ("--files", str(files), "--copies", str(copies))
    for number in range(rounds):
        for way in WAYS if number % 2 == 0 else reversed(WAYS):
            measured[way].append(in_own_process("workspaces", "--child", way, *work))
    return {way: median_of(each) for way, each in measured.items()}


def _git_version() -> str:
    return subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout.strip()


async def _measured(way: str, files: int, copies: int) -> dict[str, float]:
    """One way, once: seconds of time and of CPU (ours and git's), megabytes of memory and of disk."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        user, ours = _user_folder(root / "user", files), root / "ours"
        ours.mkdir()
        return await _steps(way, user, ours, root / "copies", copies)


async def _steps(way: str, user: Path, ours: Path, folder: Path, copies: int) -> dict[str, float]:
    found: dict[str, float] = {}
    made = await _timed(found, "snapshot", lambda: _taken(way, user, ours, folder))
    each = await _timed(found, "make", lambda: _one_by_one(made.make, [str(number) for number in range(copies)]))
    for number, copy in enumerate(each):
        _change(copy.path, number)
    await asyncio.sleep(0.1)
    diffs = await _timed(found, "changes", lambda: _one_by_one(made.changes, each))
    assert all(len(diff.files) == 4 and not diff.is_cut for diff in diffs), diffs[0]
    found["memory_mb"] = memory_kb("VmHWM", os.getpid()) / 1024
    found["private_disk_mb"] = _disk(ours)
    found["copies_disk_mb"] = _disk(folder)
    return found


async def _taken(way: str, user: Path, ours: Path, folder: Path) -> "Workspaces | GitCopies":
    if way == "add":
        return await GitCopies.take(user, ours, folder, SizeLimits())
    return Workspaces(await Snapshot.take(user, ours), folder)


async def _one_by_one(work: Callable[[Any], Awaitable[Any]], items: list[Any]) -> list[Any]:
    return [await work(item) for item in items]


async def _timed(found: dict[str, float], name: str, work: Callable[[], Awaitable[Any]]) -> Any:
    before, cpu = time.perf_counter(), _cpu()
    result = await work()
    found[f"{name}_s"], found[f"{name}_cpu_s"] = time.perf_counter() - before, _cpu() - cpu
    return result


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _user_folder(folder: Path, files: int) -> Path:
    """A repository of source-like files of 1 to 8 kB, 50 to a directory."""
    for number in range(files):
        path = folder / f"package_{number // 1000}" / f"module_{number // 50}" / f"file_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {number}\n" + f"value_{number} = {number}\n" * (40 + number * 7 % 300))
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
    identity = ["-c", "user.name=someone", "-c", "user.email=someone@localhost"]
    subprocess.run(["git", *identity, "commit", "-qm", "first"], cwd=folder, check=True, capture_output=True)
    return folder


def _change(copy: Path, number: int) -> None:
    """Small work of an agent: two edits, a new file, a deleted one, and what git ignores."""
    for name in ("package_0/module_0/file_1.py", "package_0/module_1/file_50.py"):
        with (copy / name).open("a") as file:
            file.write(f"changed_by = {number}\n")
    (copy / "package_0" / "new.py").write_text(f"agent = {number}\n")
    (copy / "package_0" / "module_0" / "file_2.py").unlink()
    (copy / "run.log").write_text("ignored\n")


def _disk(folder: Path) -> float:
    """Megabytes that are really taken; a file of several names counts once."""
    seen = {}
    for below, _, files in os.walk(folder):
        for name in files:
            found = os.lstat(os.path.join(below, name))
            seen[found.st_ino] = found.st_blocks * 512
    return sum(seen.values()) / 2**20


if __name__ == "__main__":
    main()
