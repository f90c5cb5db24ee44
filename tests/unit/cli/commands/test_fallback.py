"""batch-agent run --fallback: two servers, of which the first cannot answer everything."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batch_agent.cli.app import main
from batch_agent.sim import Script, SimConfig, SimServer

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def sims() -> Iterator[tuple[str, str]]:
    with (
        SimServer(SimConfig(model="small", zero_latency=True, max_model_len=256), Script(answer_tokens=6)) as small,
        SimServer(SimConfig(model="large", zero_latency=True), Script(answer_tokens=6)) as large,
    ):
        yield small.url, large.url


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["batch-agent", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


def models(path: str) -> list[object]:
    return [
        row["model"]
        for row in sorted(map(json.loads, Path(path).read_text().splitlines()), key=lambda row: row["index"])
    ]


@pytest.mark.slow
def test_inputs_that_one_server_cannot_answer_go_to_the_next(call: Call, sims: tuple[str, str]) -> None:
    texts = ["short", "long " * 400, "word"]
    Path("in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ("run", "in.jsonl", "--task", "Rate {text}", "--max-tokens", "16", "--out", "out.jsonl")
    backends = ("--backend", sims[0], "--fallback", f"large={sims[1]}")
    status, _, said = call(*words, *backends)
    assert status == 0, said
    assert models("out.jsonl") == ["small", "large", "small"]
    assert "fallback 1 (large): 1 of 1 agent answered" in said
    status, _, said = call(*words, "--backend", "http://127.0.0.1:1/v1", *backends[2:], "--model", "small")
    assert status == 0, said
    status, _, said = call("resume", "out.jsonl.checkpoint")
    assert status == 0, said
    status, _, said = call(*words, "--backend", sims[0], "--fresh")
    assert status != 0
    assert not Path("out.jsonl.checkpoint/fallback-1").exists()


def test_a_batch_toml_names_fallbacks(call: Call, sims: tuple[str, str]) -> None:
    Path("in.jsonl").write_text(json.dumps({"text": "short"}) + "\n")
    Path("batch.toml").write_text(
        f'''inputs = "in.jsonl"
task = "Rate {{text}}"
backend = "http://127.0.0.1:1/v1"
fallback = ["{sims[1]}"]
out = "out.jsonl"
'''
    )
    status, _, said = call("run")
    assert status == 0, said
    assert models("out.jsonl") == ["large"]
