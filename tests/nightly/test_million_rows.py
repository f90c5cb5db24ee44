"""A million rows of a file on Ray, whose actors are killed: every row comes out once."""

import os
from pathlib import Path

import duckdb
import pytest
from tests.live.ray_cluster import local_ray
from tests.live.test_ray_data import SAY, UNWRITTEN, Killer, Said, requests_of

from batch_agent import BatchAgent
from batch_agent.ray import ray_run
from batch_agent.sim import SimConfig, SimServer

# Ray leaves the files of its logs open, and warns of its own defaults.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore:The minimum number of concurrent actors"
    ),
]

ROWS = int(os.environ.get("BATCH_AGENT_NIGHTLY_ROWS", "1000001"))
KILLS = 6
INFLIGHT = 32


@pytest.mark.timeout(4 * 3600)
async def test_every_row_of_a_large_file_comes_out_once_although_actors_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_run, "MAX_ROWS", min(ray_run.MAX_ROWS, ROWS - 1))  # for fewer rows, as a trial
    source, out = tmp_path / "in.parquet", tmp_path / "out.jsonl"
    duckdb.sql(f"SELECT range AS id, 'n' || range AS it FROM range({ROWS})").write_parquet(str(source))
    with local_ray(cpus=3), SimServer(SimConfig(zero_latency=True)) as sim:
        with Killer(sim, [ROWS * (at + 1) // (KILLS + 1) for at in range(KILLS)]) as killer:
            stream = BatchAgent.stream(
                task=SAY,
                inputs=source,
                output_schema=Said,
                backend=sim.url,
                max_inflight=INFLIGHT,
                cluster="ray",
                workers=2,
                lease=3.0,
                checkpoint_dir=tmp_path / "checkpoints",
                out=out,
                progress=False,
            )
            delivered = [result.index async for result in stream]
        assert killer.killed == KILLS
        assert ROWS <= requests_of(sim) <= ROWS + KILLS * UNWRITTEN * INFLIGHT
    assert delivered == list(range(ROWS))
    query = f"""
        SELECT count(*), count(DISTINCT i.id), count(DISTINCT o.index), bool_and(o.ok AND o.output.text = i.it)
        FROM '{source}' AS i FULL JOIN read_json('{out}', format = 'newline_delimited') AS o ON o.index = i.id
    """
    assert duckdb.sql(query).fetchall() == [(ROWS, ROWS, ROWS, True)]
