"""The places where agents work."""

import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.support.runtime_contexts import FakeModelAccess, runtime_context

from batch_agent.core.errors import SpecError
from batch_agent.core.program_runtime import ProgramFailed
from batch_agent.programs.workspace.workspace import Workspace, WorkspaceRoot

AGENTS = ("one", "../two", "three/x", "", "ONE")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("x = 1\n")
    return folder


async def test_workspaces_are_separate_whatever_the_agents_are_called(tmp_path: Path, project: Path) -> None:
    workspaces = await WorkspaceRoot.open(runtime_context(tmp_path / "runtime_context"), project, keep=False)
    all_workspaces = [await workspaces.create(agent) for agent in AGENTS]
    assert len({workspace.private_dir for workspace in all_workspaces}) == len(AGENTS)
    for workspace in all_workspaces:
        assert workspace.private_dir.parent == workspaces.root
        assert (workspace.folder / "src" / "a.py").read_text() == "x = 1\n"
    await changed(all_workspaces[0])
    assert [len((await workspace.changes()).files) for workspace in all_workspaces] == [1, 0, 0, 0, 0]


async def test_a_removed_workspace_leaves_nothing_behind(tmp_path: Path, project: Path) -> None:
    workspaces = await WorkspaceRoot.open(runtime_context(tmp_path / "runtime_context"), project, keep=False)
    workspace = await workspaces.create("one")
    await workspace.write_files(lambda: (workspace.private_dir / "key").write_text("secret"))
    await workspace.remove()
    assert list(workspaces.root.iterdir()) == []


async def test_a_kept_workspace_is_a_self_contained_copy(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = runtime_context(tmp_path / "runtime_context")
    workspaces = await WorkspaceRoot.open(home, project, keep=True)
    workspace = await workspaces.create("one")
    await workspace.write_files(lambda: (workspace.private_dir / "key").write_text("secret"))
    await changed(workspace)
    await workspace.remove()
    home.folder.rename(tmp_path / "gone")
    assert list(workspace.private_dir.iterdir()) == [workspace.folder]
    said = subprocess.run(["git", "diff", "--stat"], cwd=workspace.folder, capture_output=True, text=True, timeout=60)
    assert "1 file changed" in said.stdout, said.stderr
    assert workspace.relativize(f"see {workspace.folder}/src") == f"see {workspace.folder}/src"


async def test_a_new_session_of_an_agent_gets_a_fresh_workspace(tmp_path: Path, project: Path) -> None:
    workspaces = await WorkspaceRoot.open(runtime_context(tmp_path / "runtime_context"), project, keep=False)
    await changed(await workspaces.create("one"))
    again = await workspaces.create("one")
    assert (again.folder / "src" / "a.py").read_text() == "x = 1\n"
    assert not (await again.changes()).files


async def test_without_a_folder_agents_start_with_an_empty_workspace(tmp_path: Path) -> None:
    workspaces = await WorkspaceRoot.open(runtime_context(tmp_path / "runtime_context"), None, keep=False)
    workspace = await workspaces.create("one")
    assert [each.name for each in workspace.folder.iterdir()] == [".git"]


async def test_a_workspace_that_cannot_be_written_fails_the_agent_and_is_removed(tmp_path: Path) -> None:
    workspaces = await WorkspaceRoot.open(runtime_context(tmp_path / "runtime_context"), None, keep=False)
    workspace = await workspaces.create("one")
    with pytest.raises(ProgramFailed, match="cannot be written: No such file"):
        await workspace.write_files(lambda: (workspace.private_dir / "no" / "such").write_text("x"))
    assert not workspace.private_dir.exists()


async def test_the_paths_of_a_workspace_are_masked_for_the_model(tmp_path: Path) -> None:
    model_access = FakeModelAccess()
    workspaces = await WorkspaceRoot.open(runtime_context(tmp_path / "runtime_context", model_access), None, keep=False)
    workspace = await workspaces.create("one")
    odd = re.sub("[^A-Za-z0-9]", "-", str(workspace.folder))
    assert list(model_access.masks_by_agent["one"]) == [
        str(workspace.folder),
        str(workspace.private_dir),
        str(tmp_path / "runtime_context"),
        odd,
    ]
    assert workspace.address.key == "key-of-one"


async def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not exist or is not a directory"):
        await WorkspaceRoot.open(runtime_context(tmp_path / "runtime_context"), tmp_path / "gone", keep=False)


async def changed(workspace: Workspace) -> None:
    await workspace.write_files(lambda: (workspace.folder / "src" / "a.py").write_text("x = 2\n"))
