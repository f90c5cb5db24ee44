"""Dynamo loses a worker while a run goes: no result is lost, and none is there twice."""

import json
from pathlib import Path

from tests.live.engines import dynamo_fleet

from batch_agent import BatchAgent

AGENTS = 80


async def test_a_killed_worker_costs_no_result_and_doubles_none(tmp_path: Path) -> None:
    out, ends = tmp_path / "out.jsonl", 0
    with dynamo_fleet(tmp_path, 3, "--speedup-ratio", "0.5") as (url, kill):
        async for _ in BatchAgent.stream(
            task="What is a {it}?",
            inputs=[f"case {number}" for number in range(AGENTS)],
            backend=url,
            max_tokens=64,
            max_inflight=24,
            out=str(out),
            checkpoint_dir=str(tmp_path / "checkpoint"),
            progress=False,
        ):
            ends += 1
            if ends == AGENTS // 4:
                kill[0]()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["error"] for row in rows if row["error"]] == []
    assert sorted(row["index"] for row in rows) == list(range(AGENTS))
    assert ends == AGENTS
    assert "RequestRetried" in (tmp_path / "checkpoint" / "events.jsonl").read_text()  # requests were in flight there
