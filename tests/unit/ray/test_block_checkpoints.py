"""Checkpoints of blocks: the next process finds them by the rows, and nobody shares one."""

import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from batch_agent import StoreError
from batch_agent.ray.block_checkpoints import BlockCheckpoints, block_name

ROWS = [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]


def test_a_name_depends_on_the_rows_and_their_order_alone() -> None:
    assert block_name(ROWS) == block_name([dict(reversed(row.items())) for row in ROWS])
    others: list[list[Any]] = [ROWS[::-1], ROWS[:1], [*ROWS, {}], [{"id": "1", "text": "a"}, ROWS[1]], []]
    assert len({block_name(rows) for rows in [ROWS, *others]}) == len(others) + 1
    assert block_name([{"at": date(2024, 1, 1), "data": b"\x00", "x": 1.5, "n": None}])


def test_another_process_finds_the_same_name() -> None:
    code = f"from batch_agent.ray.block_checkpoints import block_name; print(block_name({ROWS!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == block_name(ROWS)


async def test_a_directory_is_of_one_at_a_time_and_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_agent.store.sqlite._LOCK_DELAYS", ())
    one, other = (BlockCheckpoints(tmp_path, is_temporary=False) for _ in range(2))
    async with one.open(ROWS) as (first, _), other.open(ROWS) as (second, _):
        assert second.name == f"{first.name}-2"
    async with other.open(ROWS) as (again, _):
        assert again == first


async def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        async with BlockCheckpoints(tmp_path / "file", is_temporary=False).open(ROWS):
            pass


@pytest.mark.parametrize("is_temporary", [True, False])
def test_only_temporary_checkpoints_are_deleted_some_blocks_later(tmp_path: Path, *, is_temporary: bool) -> None:
    checkpoints = BlockCheckpoints(tmp_path, is_temporary=is_temporary)
    folders = [tmp_path / str(number) for number in range(12)]
    for folder in folders:
        folder.mkdir()
    for number in range(0, 12, 2):
        checkpoints.block_ended(folders[number : number + 2])
    assert [folder.exists() for folder in folders] == [not is_temporary] * 4 + [True] * 8
    checkpoints.delete_ended()
    assert any(folder.exists() for folder in folders) is not is_temporary
