"""The places where agents work."""

import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.support.runtime_contexts import Doors, house

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
    workshop = await WorkspaceRoot.open(house(tmp_path / "house"), project, keep=False)
    places = [await workshop.place(agent) for agent in AGENTS]
    assert len({place.beside for place in places}) == len(AGENTS)
    for place in places:
        assert place.beside.parent == workshop.root
        assert (place.folder / "src" / "a.py").read_text() == "x = 1\n"
    await changed(places[0])
    assert [len((await place.changes()).files) for place in places] == [1, 0, 0, 0, 0]


async def test_a_removed_workspace_leaves_nothing_behind(tmp_path: Path, project: Path) -> None:
    workshop = await WorkspaceRoot.open(house(tmp_path / "house"), project, keep=False)
    place = await workshop.place("one")
    await place.furnish(lambda: (place.beside / "key").write_text("secret"))
    await place.leave()
    assert list(workshop.root.iterdir()) == []


async def test_a_kept_workspace_is_a_self_contained_copy(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = house(tmp_path / "house")
    workshop = await WorkspaceRoot.open(home, project, keep=True)
    place = await workshop.place("one")
    await place.furnish(lambda: (place.beside / "key").write_text("secret"))
    await changed(place)
    await place.leave()
    home.folder.rename(tmp_path / "gone")
    assert list(place.beside.iterdir()) == [place.folder]
    said = subprocess.run(["git", "diff", "--stat"], cwd=place.folder, capture_output=True, text=True, timeout=60)
    assert "1 file changed" in said.stdout, said.stderr
    assert place.from_here(f"see {place.folder}/src") == f"see {place.folder}/src"


async def test_an_agent_that_comes_again_finds_its_folder_as_it_was_given(tmp_path: Path, project: Path) -> None:
    workshop = await WorkspaceRoot.open(house(tmp_path / "house"), project, keep=False)
    await changed(await workshop.place("one"))
    again = await workshop.place("one")
    assert (again.folder / "src" / "a.py").read_text() == "x = 1\n"
    assert not (await again.changes()).files


async def test_without_a_folder_agents_begin_with_an_empty_one(tmp_path: Path) -> None:
    workshop = await WorkspaceRoot.open(house(tmp_path / "house"), None, keep=False)
    place = await workshop.place("one")
    assert [each.name for each in place.folder.iterdir()] == [".git"]


async def test_what_cannot_be_written_fails_the_agent_and_leaves_nothing(tmp_path: Path) -> None:
    workshop = await WorkspaceRoot.open(house(tmp_path / "house"), None, keep=False)
    place = await workshop.place("one")
    with pytest.raises(ProgramFailed, match="cannot be written: No such file"):
        await place.furnish(lambda: (place.beside / "no" / "such").write_text("x"))
    assert not place.beside.exists()


async def test_what_is_hidden_from_the_model_is_what_only_one_agent_has(tmp_path: Path) -> None:
    doors = Doors()
    workshop = await WorkspaceRoot.open(house(tmp_path / "house", doors), None, keep=False)
    place = await workshop.place("one")
    odd = re.sub("[^A-Za-z0-9]", "-", str(place.folder))
    assert list(doors.hides["one"]) == [str(place.folder), str(place.beside), str(tmp_path / "house"), odd]
    assert place.address.key == "key-of-one"


async def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is no folder"):
        await WorkspaceRoot.open(house(tmp_path / "house"), tmp_path / "gone", keep=False)


async def changed(place: Workspace) -> None:
    await place.furnish(lambda: (place.folder / "src" / "a.py").write_text("x = 2\n"))
