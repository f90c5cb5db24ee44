"""The snapshot of the user's folder has what it should have, byte for byte; the folder does not notice."""

import os
import socket
from pathlib import Path

import pytest
from tests.support.repositories import (
    contents,
    copied,
    copies_of,
    git,
    marking,
    repository,
    stamps,
    unprivileged,
    write,
)

from batch_agent.core.errors import SpecError
from batch_agent.core.program_runtime import ProgramFailed
from batch_agent.programs.workspace.file_list import SizeLimits
from batch_agent.programs.workspace.object_store import Import
from batch_agent.programs.workspace.snapshot import Snapshot
from batch_agent.programs.workspace.tree import FileEntry, erase


async def test_a_snapshot_has_tracked_changed_and_new_files_without_ignored_ones(tmp_path: Path) -> None:
    user = repository(
        tmp_path / "user", {"a": "1", "b": "1", "gone": "1", "kept.log": "1", ".gitignore": "*.log\nout/\n"}
    )
    write(user, {"b": "changed", "new": "1", "staged": "1", "new.log": "1", "out/x": "1", "dir/deep/x": "1"})
    (user / "gone").unlink()
    git(user, "add", "staged")
    found = await copied(user, tmp_path)
    assert set(found) == {b"a", b"b", b"kept.log", b".gitignore", b"new", b"staged", b"dir/deep/x"}
    assert found[b"b"] == ("100644", b"changed")


async def test_nothing_is_written_to_the_users_folder(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {"a": "1", "sub/b": "1"})
    write(user, {"a": "changed", "new": "1"})
    git(user, "add", "new")
    os.utime(user / "a", (1, 1))  # git would like to note this in its index
    before = stamps(user)
    copies = await copies_of(user, tmp_path)
    copy = await copies.make("one")
    write(copy.path, {"a": "by the agent"})
    await copies.changes(copy)
    git(copy.path, "commit", "-qam", "mine")
    await copies.keep(copy)
    assert erase(os.fsencode(copy.path))
    assert stamps(user) == before


async def test_a_linked_worktree_can_be_copied(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", {"a": "1", ".gitignore": "*.o"})
    git(main, "worktree", "add", "-q", str(tmp_path / "linked"))
    write(tmp_path / "linked", {"new": "1", "x.o": "1"})
    before = stamps(main)
    assert set(await copied(tmp_path / "linked", tmp_path)) == {b"a", b".gitignore", b"new"}
    assert stamps(main) == before


async def test_a_folder_inside_of_a_repository_is_copied_alone_with_all_that_is_ignored_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = write(tmp_path / "home", {".gitconfig": "[core]\n\texcludesFile = ~/mine\n", "mine": "*.mine\n"})
    monkeypatch.setenv("HOME", str(home))
    user = repository(
        tmp_path / "user", {"outside": "1", "in/er/a": "1", ".gitignore": "*.top\n/in/er/exact\n/other\n"}
    )
    write(user, {"in/.gitignore": "*.middle\n", ".git/info/exclude": "*.info\n"})
    ignored = ["x.mine", "x.top", "x.middle", "x.info", "exact"]
    write(user / "in/er", dict.fromkeys([*ignored, "other"], "1"))
    copies = await copies_of(user / "in/er", tmp_path)
    copy = await copies.make("one")
    assert set(contents(copy.path)) == {b"a", b"other"}
    write(copy.path, dict.fromkeys([*ignored, "deep/x.top", "seen"], "1"))
    assert [file.path for file in (await copies.changes(copy)).files] == ["seen"]
    assert git(copy.path, "status", "--porcelain").split() == ["??", "seen"]


async def test_a_folder_ignored_by_its_repository_is_copied_as_a_plain_folder(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {".gitignore": "build/\n"})
    write(user, {"build/a": "1", "build/x/b": "1"})
    assert set(await copied(user / "build", tmp_path)) == {b"a", b"x/b"}


async def test_a_plain_folder_is_copied_without_git_histories(tmp_path: Path) -> None:
    names = ["a", ".env", "node_modules/x/y", ".hg/store", "nested/.git/config", "nested/z"]
    user = write(tmp_path / "user", dict.fromkeys(names, "1"))
    assert set(await copied(user, tmp_path)) == {b"a", b".env", b"node_modules/x/y", b"nested/z"}


async def test_without_a_folder_the_snapshot_is_empty(tmp_path: Path) -> None:
    assert await copied(None, tmp_path) == {}


async def test_a_repository_without_a_commit_is_copied(tmp_path: Path) -> None:
    user = write(tmp_path / "user", {"a": "1"})
    git(user, "init", "-q")
    assert set(await copied(user, tmp_path)) == {b"a"}


async def test_repositories_inside_are_plain_files(tmp_path: Path) -> None:
    library = repository(tmp_path / "library", {"lib.c": "1", ".gitignore": "*.o"})
    user = repository(tmp_path / "user", {"a": "1"})
    git(user, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "sub")
    git(user, "commit", "-qm", "with a submodule")
    repository(user / "deep/nested", {"in": "1"})
    repository(user / "deep/nested/er", {"most": "1"})
    git(write(user / "unborn", {"u": "1"}), "init", "-q")
    write(user, {"broken/.git": "gitdir: nowhere", "broken/x": "1", "sub/new": "1", "sub/lib.o": "1"})
    found = await copied(user, tmp_path)
    assert set(found) == {
        *(b"a", b".gitmodules", b"sub/lib.c", b"sub/.gitignore", b"sub/new"),
        *(b"deep/nested/in", b"deep/nested/er/most", b"unborn/u", b"broken/x"),
    }


async def test_a_submodule_that_was_not_fetched_is_copied_as_its_files(tmp_path: Path) -> None:
    library = repository(tmp_path / "library", {"lib.c": "1"})
    user = repository(tmp_path / "user", {"a": "1"})
    git(user, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "sub")
    git(user, "commit", "-qm", "with a submodule")
    git(user, "submodule", "--quiet", "deinit", "--force", "sub")
    write(user, {"sub/pasted": "1"})
    assert set(await copied(user, tmp_path)) == {b"a", b".gitmodules", b"sub/pasted"}


async def test_symbolic_links_are_copied_as_links(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {"a": "1", "folder/x": "1", "was_folder/x": "1"})
    outside = write(tmp_path / "outside", {"x": "secret"})
    (user / "inside").symlink_to("a")
    (user / "out").symlink_to(outside)
    (user / "nowhere").symlink_to("not there")
    (user / "round").symlink_to(".")
    (user / "was_folder/x").unlink()
    (user / "was_folder").rmdir()
    (user / "was_folder").symlink_to(outside)
    before = contents(user)
    (user / ".gitmodules").symlink_to("a")  # the one link that git checks out nowhere
    found = await copied(user, tmp_path)
    assert found == before
    assert found[b"was_folder"] == found[b"out"] == ("120000", os.fsencode(outside))
    assert b"was_folder/x" not in found


async def test_file_names_of_any_bytes_are_copied(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {})
    names = [
        b"new\nline",
        b'quo"te',
        b"back\\slash",
        b"tab\t",
        b"caf\xe9",
        "日本".encode(),
        b":(top)x",
        b"-rf",
        b" ",
        b"git~1",
    ]
    names += [
        b"[a]*?",
        b"#x",
        b"!x",
        b"x" * 255,
        b"CON",
        b"trailing.",
        b"\x01",
        b".gitkeep",
        b"deep/" + b"d/" * 60 + b"x",
    ]
    for name in names:
        path = os.path.join(os.fsencode(user), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(name)
    found = await copied(user, tmp_path)
    assert set(found) == set(names)
    assert found == contents(user)


async def test_git_attributes_filters_and_settings_do_not_change_copied_contents(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    attributes = "*.bat text eol=crlf\n*.bin filter=evil\n*.id ident\n*.utf working-tree-encoding=UTF-16\n* text=auto\n"
    files = {
        "lf.bat": b"a\nb\n",
        "crlf.txt": b"a\r\nb\r\n",
        "mixed": b"a\r\nb\n",
        "x.bin": b"big",
        "x.id": b"$Id: 12 $",
    }
    user = write(
        tmp_path / "user", {**files, "x.utf": "ä".encode("utf-16"), "run": b"#!/bin/sh\n", ".gitattributes": attributes}
    )
    (user / "run").chmod(0o755)
    git(user, "init", "-q")
    git(user, "config", "core.autocrlf", "true")
    for kind in ("clean", "smudge"):
        git(user, "config", f"filter.evil.{kind}", marking(tmp_path / kind, marker))
    found = await copied(user, tmp_path)
    assert found == contents(user)
    assert found[b"run"][0] == "100755"
    assert not marker.exists()


async def test_no_git_hook_or_filter_of_the_user_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    user = repository(tmp_path / "user", {"a": "1"})
    program = marking(tmp_path / "program", marker)
    git(user, "config", "core.hooksPath", str(tmp_path / "hooks"))
    (tmp_path / "hooks").mkdir()
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit"):
        marking(tmp_path / "hooks" / hook, marker)
    git(user, "config", "core.fsmonitor", program)
    git(user, "config", "commit.gpgSign", "true")
    git(user, "config", "gpg.program", program)
    marker.unlink(missing_ok=True)
    copies = await copies_of(user, tmp_path)
    await copies.make("one")
    assert not marker.exists()


async def test_git_environment_variables_of_the_caller_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = repository(tmp_path / "other", {"wrong": "1"})
    user = repository(tmp_path / "user", {"right": "1"})
    before = stamps(other)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(other / ".git/objects"))
    copies = await copies_of(user, tmp_path)
    assert set(contents((await copies.make("one")).path)) == {b"right"}
    assert stamps(other) == before


async def test_a_repository_of_another_user_can_be_copied(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {"a": "1", ".gitignore": "x\n"})
    write(user, {"x": "1"})
    if os.geteuid() == 0:
        for path in [user, *user.rglob("*")]:
            os.chown(path, 65534, 65534)
    assert set(await copied(user, tmp_path)) == {b"a", b".gitignore"}


async def test_pipes_and_sockets_are_left_out_without_blocking(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {"a": "1", "b": "1"})
    (user / "b").unlink()
    os.mkfifo(user / "b")
    os.mkfifo(user / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(user / "socket"))
        assert set(await copied(user, tmp_path)) == {b"a"}


async def test_a_file_larger_than_the_read_buffer_is_copied_whole(tmp_path: Path) -> None:
    files = {"large": os.urandom(3 * 2**20 + 17), "even": b"x" * 2**20, "empty": b""}
    user = repository(tmp_path / "user", {})
    write(user, files)
    assert await copied(user, tmp_path) == contents(user)


def test_a_file_replaced_by_a_pipe_or_link_after_listing_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1", "secret": "secret"})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("secret")
    file = FileEntry("100644", 1, 1, 1)
    listed = {b"gone": file, b"pipe": file, b"link": file, b"a": file, b"secret": FileEntry("120000", 1, 1, 1)}
    files = Import(os.fsencode(tmp_path), listed)
    assert b"".join(files) == b"blob\nmark :1\ndata 1\n1\ndone\n"
    assert (files.imported, files.unread) == ([b"a"], [])


def test_a_growing_file_is_copied_up_to_its_initial_size(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": b"x" * (2**20 + 5)}) / "a"
    reading = iter(Import(os.fsencode(tmp_path), {b"a": FileEntry("100644", 1, 1, 1)}))
    assert next(reading) == b"blob\nmark :1\ndata 1048581\n"
    with path.open("ab") as file:
        file.write(b"more")
    assert b"".join(reading) == b"x" * (2**20 + 5) + b"\ndone\n"

    reading = iter(Import(os.fsencode(tmp_path), {b"a": FileEntry("100644", 1, 1, 1)}))
    next(reading)
    path.write_bytes(b"")
    with pytest.raises(ProgramFailed, match="'a' was truncated"):
        b"".join(reading)


async def test_a_scratch_dir_inside_the_users_folder_is_not_copied(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1"})
    assert set(await copied(tmp_path, tmp_path)) == {b"a"}


async def test_generated_folders_are_left_out_of_a_plain_folder_that_is_too_large(
    tmp_path: Path,
) -> None:
    user = write(tmp_path / "user", {"a": "1", **{f"node_modules/{n}": "1" for n in range(20)}})
    copies = await copies_of(user, tmp_path, most=SizeLimits(files=10))
    assert set(contents((await copies.make("one")).path)) == {b"a"}


@pytest.mark.parametrize("most", [SizeLimits(files=3), SizeLimits(size=30)])
@pytest.mark.parametrize("make", [write, repository])
async def test_a_folder_that_is_too_large_is_refused_with_advice(
    tmp_path: Path, most: SizeLimits, make: object
) -> None:
    assert callable(make)
    user = make(tmp_path / "user", {f"{n}": "x" * 10 for n in range(4)})
    with pytest.raises(SpecError, match=r"(?s)too large to copy.*(ignore)"):
        await copies_of(user, tmp_path, most=most)


@pytest.mark.parametrize("make", [write, repository])
@pytest.mark.parametrize("closed", ["closed", "folder"])
async def test_an_unreadable_file_is_named_in_the_error(make: object, closed: str) -> None:
    assert callable(make)
    async with unprivileged() as place:
        user = make(place / "user", {"a": "1"})
        write(user, {"closed": "1", "folder/x": "1"})
        (user / closed).chmod(0)
        try:
            with pytest.raises(SpecError, match=f"{closed}.*[Mm]ake it readable"):
                await copies_of(user, place)
        finally:
            (user / closed).chmod(0o700)


async def test_a_path_that_is_not_a_folder_is_rejected(tmp_path: Path) -> None:
    for workdir in (tmp_path / "nothing", write(tmp_path, {"file": "1"}) / "file"):
        with pytest.raises(SpecError, match="does not exist or is not a directory"):
            await Snapshot.take(workdir, tmp_path)


async def test_a_repository_that_git_cannot_read_is_rejected_with_the_error_of_git(tmp_path: Path) -> None:
    user = repository(tmp_path / "user", {"a": "1"})
    write(user, {".git/index": b"no index"})
    with pytest.raises(SpecError, match="index"):
        await copies_of(user, tmp_path)


async def test_without_git_one_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match="Install git"):
        await Snapshot.take(None, tmp_path)


@pytest.mark.parametrize(
    ("says", "message"), [("echo git version 2.31.9", "Install git 2.32"), ("echo no; exit 1", "does not work")]
)
async def test_a_git_that_is_too_old_or_broken_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, message: str
) -> None:
    program = write(tmp_path / "bin", {"git": f"#!/bin/sh\n{says}\n"}) / "git"
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(SpecError, match=message):
        await Snapshot.take(None, tmp_path)
