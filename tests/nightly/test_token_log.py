"""Programs behind the gateway whose tokens are kept: the ids in the checkpoint against the log of a real vLLM."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.rollouts import PROGRAMS, compared, engine, kept, logged, programs
from tests.live.opencode import make_project

AGENTS = 2


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm-with-log")


@pytest.fixture(scope="module")
def vllm_with_log(scratch: Path) -> Iterator[str]:
    with engine("vllm", scratch) as url:
        yield url


@pytest.mark.parametrize("program", PROGRAMS)
async def test_the_checkpoint_has_the_ids_that_the_engine_logged(
    program: str, vllm_with_log: str, scratch: Path, tmp_path: Path
) -> None:
    start, folder = (scratch / "vllm.log").stat().st_size, tmp_path / "run"
    ran = await programs(vllm_with_log, "vllm", program, AGENTS, folder, make_project(tmp_path / "project"))
    assert (ran["ok"], ran["tool_calls"]) == (AGENTS, AGENTS), ran
    found = compared(kept(folder), logged("vllm", scratch, start))
    assert found["equal"] == found["turns"] == found["turns_in_the_log"] == 2 * AGENTS, found
    assert found["sent_as_ids"] == found["later_turns"] == AGENTS, found
    assert found["breaks"] == 0
