"""What an agent changed, whatever it did to its copy."""

import os
import shutil
import socket
from pathlib import Path

import pytest
from tests.support.repositories import contents, copies_of, git, marking, repository, unprivileged, write

from batch_agent.core.results import Changes, FileChange
from batch_agent.programs.workspace.changes import DiffLimits, WorkingCopy
from batch_agent.programs.workspace.workspace import Workspaces

FILES = {"a": "1\n2\n", "b": "1\n", "dir/c": "1\n", "dir/d": "2\n", ".gitignore": "*.log\n"}


async def begun(tmp_path: Path, bounds: DiffLimits | None = None) -> tuple[Workspaces, WorkingCopy]:
    copies = await copies_of(repository(tmp_path / "user", FILES), tmp_path, bounds=bounds)
    return copies, await copies.make("one")


def applied(user: Path, changes: Changes) -> None:
    """As a user does it, who has the patch as text."""
    patch = user.parent / "patch"
    patch.write_bytes(changes.patch.encode())
    git(user, "apply", str(patch))


def paths(changes: Changes) -> list[str]:
    return [file.path for file in changes.files]


async def test_an_agent_that_changed_nothing_has_no_changes(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path)
    assert await copies.changes(copy) == Changes()
    assert str(Changes()) == "no files changed"


async def test_added_modified_and_deleted_files_are_reported_with_their_lines(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path)
    write(copy.path, {"a": "1\n3\n4\n", "new/x": "1\n"})
    (copy.path / "b").unlink()
    changes = await copies.changes(copy)
    assert changes.files == (
        FileChange("a", "modified", 2, 1),
        FileChange("b", "deleted", 0, 1),
        FileChange("new/x", "added", 1, 0),
    )
    assert str(changes) == "3 files changed, +3 -2"
    assert not changes.is_cut
    assert "\n--- a/a\n+++ b/a\n@@ -1,2 +1,3 @@\n 1\n-2\n+3\n+4\n" in changes.patch
    applied(tmp_path / "user", changes)
    assert contents(tmp_path / "user") == contents(copy.path)


async def test_in_an_empty_folder_all_files_are_new(tmp_path: Path) -> None:
    copies = await copies_of(None, tmp_path)
    copy = await copies.make("one")
    write(copy.path, {"a": "1\n"})
    assert (await copies.changes(copy)).files == (FileChange("a", "added", 1, 0),)


async def test_changes_can_be_computed_repeatedly(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path)
    write(copy.path, {"a": "x\n"})
    assert paths(await copies.changes(copy)) == ["a"]
    write(copy.path, {"a": "1\n2\n", "b": "x\n"})
    assert paths(await copies.changes(copy)) == ["b"]


async def test_committed_and_uncommitted_changes_are_both_reported(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path)
    write(copy.path, {"a": "x\n", "new": "1\n"})
    loose = await copies.changes(copy)
    git(copy.path, "checkout", "-qb", "mine")
    git(copy.path, "add", "-A")
    git(copy.path, "commit", "-qm", "mine")
    assert await copies.changes(copy) == loose
    assert paths(loose) == ["a", "new"]


async def test_an_immediate_edit_of_the_same_size_is_detected(tmp_path: Path) -> None:
    copies = await copies_of(repository(tmp_path / "user", FILES), tmp_path)
    for attempt in range(5):
        copy = await copies.make(str(attempt))
        before = (copy.path / "a").stat()
        (copy.path / "a").write_text("1\n3\n")
        os.utime(copy.path / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
        assert paths(await copies.changes(copy)) == ["a"]


async def test_files_in_a_renamed_folder_are_reported(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {"x/file": "1\n", "y/file": "2\n"})
    copies = await copies_of(user, tmp_path)
    copy = await copies.make("one")
    for source, target in (("x", "z"), ("y", "x"), ("z", "y")):
        (copy.path / source).rename(copy.path / target)
    assert paths(await copies.changes(copy)) == ["x/file", "y/file"]


async def test_new_ignored_files_are_not_reported(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path)
    write(
        copy.path,
        {"x.log": "1", "deep/x.log": "1", "deep/.gitignore": "/out/\n!*.log\n", "deep/out/x": "1", "out": "1"},
    )
    assert paths(await copies.changes(copy)) == ["deep/.gitignore", "deep/x.log", "out"]


async def test_files_of_the_program_itself_are_reported_only_if_the_project_has_them(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {".aider.conf.yml": "a: 1\n"})
    copies = await copies_of(user, tmp_path)
    copy = await copies.make("one")
    assert git(copy.path, "check-ignore", ".aider") == ".aider\n"  # so that aider does not put it into .gitignore
    write(copy.path, {".aider.chat.history.md": "1", ".aider.tags.cache.v4/cache.db": "1", ".aider.conf.yml": "a: 2\n"})
    assert paths(await copies.changes(copy)) == [".aider.conf.yml"]


async def test_an_ignore_file_that_is_a_link_ignores_nothing(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path)
    write(tmp_path, {"outside": "*\n"})
    (copy.path / "deep").mkdir()
    (copy.path / "deep/.gitignore").symlink_to(tmp_path / "outside")
    write(copy.path, {"deep/x": "1\n"})
    assert paths(await copies.changes(copy)) == ["deep/.gitignore", "deep/x"]


async def test_file_names_with_a_meaning_to_git_are_plain_names(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path)
    names = [":(top)x", ":!a", ":", "*", "-z", "deep/[a]"]
    write(copy.path, {**dict.fromkeys(names, "1\n"), ":(top)x.log": "1\n"})
    assert paths(await copies.changes(copy)) == sorted(names)


async def test_a_file_of_the_snapshot_cannot_be_hidden_by_ignoring_it(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path)
    write(copy.path, {".gitignore": "*\n", "a": "x\n", "new": "1\n"})
    assert paths(await copies.changes(copy)) == [".gitignore", "a"]


@pytest.mark.parametrize("how", ["gone", "file", "link", "garbage", "new"])
async def test_changes_are_found_whatever_happened_to_the_repository_of_the_workspace(tmp_path: Path, how: str) -> None:
    copies, copy = await begun(tmp_path)
    write(copy.path, {"a": "x\n"})
    inner = copy.path / ".git"
    shutil.rmtree(inner)
    match how:
        case "file":
            inner.write_text("gitdir: /nowhere")
        case "link":
            inner.symlink_to(tmp_path / "user/.git")
        case "garbage":
            write(inner, {"HEAD": b"\0", "config": b"[["})
        case "new":
            git(copy.path, "init", "-q")
    assert paths(await copies.changes(copy)) == ["a"]


async def test_no_git_hook_or_filter_of_an_agent_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    copies, copy = await begun(tmp_path)
    program = marking(tmp_path / "program", marker)
    repository(copy.path / "nested", {"in": "1\n"})
    settings = {
        "core.fsmonitor": program,
        "diff.external": program,
        "core.pager": program,
        "diff.evil.textconv": program,
    }
    for folder in (copy.path, copy.path / "nested"):
        for name, value in {**settings, "filter.evil.clean": program, "core.hooksPath": str(tmp_path)}.items():
            git(folder, "config", name, value)
    write(copy.path, {".gitattributes": "* filter=evil diff=evil\n", "a": "x\n"})
    write(copy.path, {".gitmodules": '[submodule "nested"]\n\tpath = nested\n\turl = ./x\n\tupdate = !touch marker\n'})
    marker.unlink(missing_ok=True)
    assert paths(await copies.changes(copy)) == [".gitattributes", ".gitmodules", "a", "nested/in"]
    assert not marker.exists()


async def test_pipes_and_sockets_do_not_block_the_diff(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path)
    nested = copy.path / "nested/.git"
    nested.mkdir(parents=True)
    for name in ("pipe", ".gitattributes", "deep.gitignore", "nested/.gitignore", "nested/.git/HEAD"):
        os.mkfifo(copy.path / name)
    for name in ("a", ".gitignore"):
        (copy.path / name).unlink()
        os.mkfifo(copy.path / name)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(copy.path / "socket"))
        write(copy.path, {"new": "1\n"})
        changes = await copies.changes(copy)
    assert [(file.path, file.kind) for file in changes.files] == [
        (".gitignore", "deleted"),
        ("a", "deleted"),
        ("new", "added"),
    ]


async def test_links_are_never_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"c": "secret\n", "d": "secret\n"})
    copies, copy = await begun(tmp_path)
    (copy.path / "a").unlink()
    (copy.path / "a").symlink_to(outside / "c")
    shutil.rmtree(copy.path / "dir")
    (copy.path / "dir").symlink_to(outside)
    (copy.path / ".gitignore").unlink()
    (copy.path / ".gitignore").symlink_to("/dev/zero")
    changes = await copies.changes(copy)
    assert [(file.path, file.kind) for file in changes.files] == [
        (".gitignore", "modified"),
        ("a", "modified"),
        ("dir", "added"),
        ("dir/c", "deleted"),
        ("dir/d", "deleted"),
    ]
    assert "secret" not in changes.patch
    applied(tmp_path / "user", changes)
    assert contents(tmp_path / "user") == contents(copy.path)


@pytest.mark.parametrize("instead", ["nothing", "file", "link"])
async def test_a_workspace_that_is_no_longer_a_folder_has_lost_all_files(tmp_path: Path, instead: str) -> None:
    copies, copy = await begun(tmp_path)
    shutil.rmtree(copy.path)
    if instead == "file":
        copy.path.write_text("1")
    elif instead == "link":
        copy.path.symlink_to(tmp_path / "user")
    changes = await copies.changes(copy)
    assert [file.path for file in changes.files if file.kind == "deleted"] == sorted(FILES)


async def test_files_and_folders_can_replace_each_other(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path)
    (copy.path / "a").unlink()
    shutil.rmtree(copy.path / "dir")
    write(copy.path, {"a/inside": "1\n", "dir": "now a file\n"})
    (copy.path / "b").chmod(0o755)
    changes = await copies.changes(copy)
    assert FileChange("b", "modified", 0, 0) in changes.files
    applied(tmp_path / "user", changes)
    assert contents(tmp_path / "user") == contents(copy.path)


async def test_contents_and_names_of_any_bytes_are_in_a_patch_that_is_plain_text(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {"latin": b"caf\xe9\n", "plain": "1\n", "was": b"\xff\n", "t\u00e4xt": "ä\n"})
    copies = await copies_of(user, tmp_path)
    copy = await copies.make("one")
    files = {"latin": b"caf\xe8\n", "plain": b"2\n", "bin": bytes(range(256)), "crlf": b"a\r\nb", "[x]*\\": b"\xe9\n"}
    write(copy.path, {**files, "t\u00e4xt": "ö\n", os.fsdecode(b'\xe9\n"'): b"1\n", "to": b"\xe9"})
    (copy.path / "was").unlink()
    (copy.path / "was").symlink_to("plain")
    changes = await copies.changes(copy)
    assert FileChange('\\xe9\n"', "added", 1, 0) in changes.files
    assert FileChange("latin", "modified", 1, 1) in changes.files
    assert FileChange("bin", "added", 0, 0) in changes.files
    assert "-1\n+2\n" in changes.patch
    assert "-ä\n+ö\n" in changes.patch
    assert not changes.is_cut
    applied(user, changes)
    assert contents(user) == contents(copy.path)


async def test_a_patch_of_a_folder_inside_of_a_repository_can_be_applied_there(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {"in/er/a": "1\n", "outside": "1\n"})
    copies = await copies_of(user / "in/er", tmp_path)
    copy = await copies.make("one")
    write(copy.path, {"a": "2\n", "new": "1\n"})
    changes = await copies.changes(copy)
    assert paths(changes) == ["a", "new"]
    (tmp_path / "patch").write_text(changes.patch)
    git(user / "in/er", "apply", str(tmp_path / "patch"))
    assert contents(user / "in/er") == contents(copy.path)


async def test_a_file_that_is_too_large_is_reported_by_name_only(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path, DiffLimits(file=1000))
    with (copy.path / "0-huge").open("wb") as file:
        file.truncate(64 * 2**30)
    write(copy.path, {"a": "x" * 1001, "b": "x\n", "small": "x" * 1000})
    changes = await copies.changes(copy)
    assert [(file.path, file.kind) for file in changes.files] == [
        ("0-huge", "added"),
        ("a", "modified"),
        ("b", "modified"),
        ("small", "added"),
    ]
    assert changes.is_cut
    applied(tmp_path / "user", changes)
    assert (tmp_path / "user/b").read_text() == "x\n"
    assert not (tmp_path / "user/0-huge").exists()


async def test_files_that_are_too_large_together_are_reported_by_name(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path, DiffLimits(new=2500))
    write(copy.path, {f"new-{number}": "x" * 1000 for number in range(5)})
    changes = await copies.changes(copy)
    assert len(changes.files) == 5
    assert changes.patch.count("diff --git ") == 2
    assert changes.is_cut


async def test_large_original_files_are_reported_only_if_changed(tmp_path: Path) -> None:
    names = ["as-given", "deleted", "longer", "other", "shorter", "touched"]
    user = repository(tmp_path / "user", {**dict.fromkeys(names, "x\n" * 5000), "small": "1\n"})
    copies = await copies_of(user, tmp_path, bounds=DiffLimits(file=1000))
    copy = await copies.make("one")
    (copy.path / "deleted").unlink()
    files = {"longer": "x\n" * 5001, "other": "x\n" * 4999 + "y\n", "shorter": "x\n", "touched": "x\n" * 5000}
    write(copy.path, {**files, "small": "2\n"})
    changes = await copies.changes(copy)
    assert changes.files == (
        FileChange("deleted", "deleted"),
        FileChange("longer", "modified"),
        FileChange("other", "modified"),
        FileChange("shorter", "modified"),
        FileChange("small", "modified", 1, 1),
    )
    assert changes.is_cut
    assert changes.patch.count("diff --git ") == 1
    write(copy.path, {**dict.fromkeys(names, "x\n" * 5000), "small": "1\n"})
    assert await copies.changes(copy) == Changes()


async def test_a_patch_that_is_too_long_ends_with_a_whole_file(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path, DiffLimits(patch=3000))
    write(copy.path, {f"new-{number}": "diff --git a/x b/x\n" * 50 for number in range(5)})
    changes = await copies.changes(copy)
    assert len(changes.files) == 5
    assert changes.is_cut
    assert len(changes.patch.encode()) <= 3000
    applied(tmp_path / "user", changes)
    assert set(contents(tmp_path / "user")) == {os.fsencode(name) for name in FILES} | {b"new-0", b"new-1"}


async def test_repositories_that_an_agent_made_are_plain_files(tmp_path: Path) -> None:
    copies, copy = await begun(tmp_path)
    repository(copy.path / "clone", {"x": "1\n"})
    git(write(copy.path / "unborn", {"y": "1\n"}), "init", "-q")
    changes = await copies.changes(copy)
    assert paths(changes) == ["clone/x", "unborn/y"]
    applied(tmp_path / "user", changes)
    assert contents(tmp_path / "user") == contents(copy.path)


async def test_files_without_read_permission_are_still_compared() -> None:
    async with unprivileged() as place:
        copies, copy = await begun(place)
        write(copy.path, {"a": "x\n", "new/er/y": "1\n"})
        for name in ("a", "new/er", "new", "dir"):
            (copy.path / name).chmod(0)
        changes = await copies.changes(copy)
        assert changes.files == (FileChange("a", "modified", 1, 2), FileChange("new/er/y", "added", 1, 0))
        assert not changes.is_cut
