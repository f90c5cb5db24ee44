"""Programs behind the gateway whose tokens are kept: the ids in the checkpoint against the log of a real engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.rollouts import PROGRAMS, compared, engine, kept, logged, programs
from tests.live.opencode import make_project

AGENTS = 2
TRIALS = {"vllm": 0, "sglang": 1}
"""Requests by which a connection finds out whether the server takes tools."""


@pytest.fixture(scope="module", params=TRIALS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def scratch(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(f"{kind}-with-log")


@pytest.fixture(scope="module")
def engine_with_log(kind: str, scratch: Path) -> Iterator[str]:
    with engine(kind, scratch) as url:
        yield url


@pytest.mark.parametrize("program", PROGRAMS)
async def test_the_checkpoint_has_the_ids_that_the_engine_logged(
    program: str, kind: str, engine_with_log: str, scratch: Path, tmp_path: Path
) -> None:
    start, folder = (scratch / f"{kind}.log").stat().st_size, tmp_path / "run"
    ran = await programs(engine_with_log, kind, program, AGENTS, folder, make_project(tmp_path / "project"))
    assert (ran["ok"], ran["tool_calls"]) == (AGENTS, AGENTS), ran
    found = compared(kept(folder), logged(kind, scratch, start))
    assert found["equal"] == found["turns"] == found["turns_in_the_log"] - TRIALS[kind] == 2 * AGENTS, found
    assert found["sent_as_ids"] == found["later_turns"] == AGENTS, found
    assert found["breaks"] == 0
