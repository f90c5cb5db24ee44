"""Copies for agents: ordinary repositories that have nothing to do with each other, nor with the user's."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.repositories import contents, copies_of, git, marking, repository, unprivileged, write

from batch_agent.core.program_runtime import ProgramFailed
from batch_agent.core.results import Changes, FileChange
from batch_agent.programs.workspace.git import Git
from batch_agent.programs.workspace.tree import erase
from batch_agent.programs.workspace.workspace import folder_name


async def test_a_workspace_is_a_clean_repository_of_one_commit_without_a_remote(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {"a": "1", "run": "#!/bin/sh"})
    (user / "run").chmod(0o755)
    copy = await (await copies_of(user, tmp_path)).make("one")
    assert git(copy.path, "status", "--porcelain", "--ignored") == ""
    assert git(copy.path, "log", "--format=%s%d").splitlines() == ["The folder as it was given (HEAD -> main)"]
    assert git(copy.path, "remote") == ""
    assert "No configured push destination" in git(copy.path, "push", ok=False)
    assert git(copy.path, "fsck", "--strict") == ""


async def test_an_agent_can_commit_without_a_configured_git_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = write(tmp_path / "home", {".gitconfig": "[commit]\n\tgpgSign = true\n[user]\n\tuseConfigOnly = true\n"})
    monkeypatch.setenv("HOME", str(home))
    copy = await (await copies_of(None, tmp_path)).make("one")
    write(copy.path, {"a": "1"})
    git(copy.path, "add", "a", env={})
    git(copy.path, "commit", "-qm", "mine", env={})
    assert git(copy.path, "status", "--porcelain", env={}) == ""


@pytest.mark.slow
async def test_twenty_concurrent_workspaces_are_independent(tmp_path: Path) -> None:
    copies = await copies_of(repository(tmp_path / "user", {"a": "1\n", "b": "1\n"}), tmp_path)

    async def work(number: int) -> Changes:
        copy = await copies.make(str(number))
        write(copy.path, {"a": f"by {number}\n", f"only-{number}": "1\n"})
        return await copies.changes(copy)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(number)) for number in range(20)]
    for number, task in enumerate(tasks):
        assert task.result().files == (FileChange("a", "modified", 1, 1), FileChange(f"only-{number}", "added", 1, 0))
        assert f"+by {number}\n" in task.result().patch
    assert len(list((tmp_path / "copies").iterdir())) == 20


@pytest.mark.slow
async def test_twenty_agents_can_make_the_same_changes_at_once(tmp_path: Path) -> None:
    copies = await copies_of(repository(tmp_path / "user", {"a": "1\n"}), tmp_path)
    made = [await copies.make(str(number)) for number in range(20)]
    for copy in made:
        write(copy.path, {"a": "2\n"})
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(copies.changes(copy)) for copy in made]
    assert {task.result().files for task in tasks} == {(FileChange("a", "modified", 1, 1),)}
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {
        "excludes",
        "gitconfig",
        "index",
        "seed",
        "store.git",
    }


async def test_the_same_agent_name_gives_the_same_folder_with_fresh_contents(tmp_path: Path) -> None:
    copies = await copies_of(repository(tmp_path / "user", {"a": "1"}), tmp_path)
    first = await copies.make("agent")
    write(first.path, {"a": "changed", "new": "1"})
    second = await copies.make("agent")
    assert second.path == first.path
    assert contents(second.path) == {b"a": ("100644", b"1")}
    assert await copies.changes(second) == Changes()


def test_workspace_folders_have_short_unique_names() -> None:
    names = ["0", "a-1", "A-1", "a 1", "a/../1", "ä", "..", "", "-x", ".git", "x" * 500, "x" * 501, "\ud800", "a\n1"]
    folders = [folder_name(name) for name in names]
    assert folders[:2] == ["0", "a-1"]
    assert len(set(folders)) == len(names)
    assert all(folder and len(folder) < 40 and folder[0] not in "-." and "/" not in folder for folder in folders)


async def test_a_workspace_with_read_only_folders_is_removed() -> None:
    async with unprivileged() as place:
        copies = await copies_of(None, place)
        copy = await copies.make("one")
        write(copy.path, {"open/shut/x": "1", "blind/y": "1"})
        (copy.path / "open/shut").chmod(0o500)
        (copy.path / "open").chmod(0o500)
        (copy.path / "blind").chmod(0)
        assert erase(os.fsencode(copy.path))
        assert not copy.path.exists()
        assert erase(os.fsencode(copy.path))


async def test_removing_a_workspace_does_not_follow_links(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"x": "1"})
    copies = await copies_of(None, tmp_path)
    copy = await copies.make("one")
    (copy.path / "link").symlink_to(outside)
    assert erase(os.fsencode(copy.path))
    copy.path.symlink_to(outside)
    assert erase(os.fsencode(copy.path))
    assert (outside / "x").exists()


def test_folders_deeper_than_python_can_recurse_are_removed(tmp_path: Path) -> None:
    top = folder = os.path.join(os.fsencode(tmp_path), b"d")
    for _ in range(970):
        os.mkdir(folder)
        folder = os.path.join(folder, b"d")
    assert erase(top)


async def test_a_kept_workspace_does_not_depend_on_the_snapshot(tmp_path: Path) -> None:
    copies = await copies_of(repository(tmp_path / "user", {"a": "1"}), tmp_path)
    copy, other = await copies.make("one"), await copies.make("other")
    write(copy.path, {"a": "2"})
    git(copy.path, "commit", "-qam", "mine")
    write(other.path, {"secret": "of the other"})
    await copies.changes(other)
    await copies.keep(copy)
    shutil.rmtree(tmp_path / "ours")
    assert git(copy.path, "fsck", "--strict", "--no-dangling") == ""
    assert git(copy.path, "show", "HEAD~:a") == "1"
    assert not (copy.path / ".git/objects/info/alternates").exists()
    assert len(git(copy.path, "cat-file", "--batch-check", "--batch-all-objects").splitlines()) == 3 + 3


async def test_keeping_a_workspace_writes_nowhere_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "info").mkdir(parents=True)
    (outside / "pack").mkdir()
    copies = await copies_of(repository(tmp_path / "user", {"a": "1"}), tmp_path)
    copy = await copies.make("one")
    shutil.rmtree(copy.path / ".git/objects")
    (copy.path / ".git/objects").symlink_to(outside)
    await copies.keep(copy)
    assert not list((outside / "pack").iterdir())
    shutil.rmtree(copy.path)
    await copies.keep(copy)


async def test_a_workspace_that_cannot_be_created_fails_only_its_agent(tmp_path: Path) -> None:
    copies = await copies_of(None, tmp_path)
    (tmp_path / "copies").write_text("in the way")
    with pytest.raises(ProgramFailed, match="cannot be created"):
        await copies.make("one")


async def test_a_cancelled_git_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    script = f"#!/bin/sh\nread told\necho $$ > '{tmp_path}/started'\nexec sleep 600\n"
    program = write(tmp_path, {"git": script}) / "git"
    program.chmod(0o755)
    async with asyncio.timeout(60):
        git = Git(str(program), tmp_path / "config")
        running = asyncio.create_task(git.run("anything", cwd=tmp_path, stdin=[b"go\n"]))
        process = int(await asyncio.to_thread((tmp_path / "started").read_text))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_a_git_that_writes_too_much_is_stopped(tmp_path: Path) -> None:
    program = write(tmp_path, {"git": "#!/bin/sh\nexec yes\n"}) / "git"
    program.chmod(0o755)
    async with asyncio.timeout(60):
        said = await Git(str(program), tmp_path / "config").run("anything", cwd=tmp_path, max_bytes=7)
    assert said.is_cut
    assert said.out == b"y\ny\ny\ny"


async def test_a_git_that_closes_its_stdin_is_reported_with_its_error(tmp_path: Path) -> None:
    program = write(tmp_path, {"git": "#!/bin/sh\necho no room >&2\nexit 3\n"}) / "git"
    program.chmod(0o755)
    with pytest.raises(ProgramFailed, match="git anything failed: no room"):
        await Git(str(program), tmp_path).run("anything", cwd=tmp_path, stdin=(b"x" * 2**20 for _ in range(50)))


async def test_an_error_while_feeding_git_is_raised_unchanged(tmp_path: Path) -> None:
    program = marking(tmp_path / "git", tmp_path / "marker")
    with pytest.raises(ProgramFailed, match="cut off"):
        await Git(program, tmp_path).run("anything", cwd=tmp_path, stdin=_cut_off())


def _cut_off() -> Iterator[bytes]:
    yield b"x"
    raise ProgramFailed("it was cut off")
