"""Several endpoints from the command line."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.support.forked_programs import Call
from tests.support.sim_hosts import STEPS, Host, up


@pytest.mark.slow
async def test_a_cli_run_accepts_a_hostfile_and_resumes_with_another(tmp_path: Path, call: Call) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "number {i}"}}\n' for i in range(20)))
    words = ("run", "--task", "Summarize: {text}", "--inputs", "in.jsonl", "--backend", "hostfile://agents.hostfile")
    async with up(Host(STEPS), Host(STEPS), Host(STEPS)) as hosts:
        for chosen in (hosts[:2], hosts[1:]):
            (tmp_path / "agents.hostfile").write_text("\n".join(f"{host.address} big" for host in chosen))
            done = await asyncio.to_thread(call, *words, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert "20 of 20 agents answered" in done.stderr
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 20
    assert sum(host.requests() for host in hosts) == 20
    assert hosts[0].requests()
    assert hosts[1].requests()
    assert all(json.loads(line)["error"] is None for line in (tmp_path / "results.jsonl").read_text().splitlines())


async def test_an_unusable_hostfile_is_a_one_line_error(tmp_path: Path, call: Call) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "agents.hostfile").write_text("gpu1:8000\ngpu2:eight\n")
    words = ("run", "--task", "{text}", "--inputs", "in.jsonl", "--backend", "hostfile://agents.hostfile")
    done = await asyncio.to_thread(call, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "line 2: 'gpu2:eight': 'eight' is not a port" in done.stderr
    assert "Traceback" not in done.stderr
