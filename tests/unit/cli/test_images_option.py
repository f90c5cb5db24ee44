"""`--images` and its key in a config file: paths in the inputs are images."""

import json
from pathlib import Path

import pytest
from tests.support.forked_programs import Call
from tests.support.pictures import picture, saved

from batch_agent.sim import Script, SimConfig, SimServer


@pytest.mark.slow
def test_the_flag_and_the_config_file_name_the_fields_that_are_images(tmp_path: Path, call: Call) -> None:
    saved(tmp_path / "a.png", picture())
    (tmp_path / "in.jsonl").write_text('{"photo": "a.png"}\n')
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=4)) as sim:
        config = (
            f'task = "What is in {{photo}}?"\ninputs = "in.jsonl"\nbackend = "{sim.url}"\nlog_requests = "log.jsonl"\n'
        )
        (tmp_path / "batch.toml").write_text(config)
        done = call("run", "--images", "photo", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (tmp_path / "batch.toml").write_text(f'{config}images = ["photo"]\n')
        assert call("run", "--fresh", cwd=tmp_path).returncode == 0
    bodies = [json.loads(line)["body"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    shown = [part["type"] for body in bodies for part in body["messages"][-1]["content"]]
    assert shown == ["text", "image_url", "text"] * 2
    done = call("run", "--images", "foto", cwd=tmp_path)
    assert done.returncode != 0
    assert "the task has no field {foto}" in done.stderr
