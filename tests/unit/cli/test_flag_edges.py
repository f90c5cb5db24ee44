"""Every flag that says what to ask, at its edges: it works, or is refused in one line. Nothing is sent by `lint`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.api.test_option_edges import naming

from batch_agent.cli.app import app, main

EDGES = {
    "zero": "0",
    "one": "1",
    "negative": "-1",
    "huge": f"1{'0' * 30}",
    "huge float": "1e300",
    "nan": "nan",
    "inf": "inf",
    "empty": "",
    "unicode": "ü漢",
    "spaces": "x y",
}
TEXT = "zero one negative huge huge-float nan inf unicode spaces"

# The edges at which a flag works. At all others it is refused.
WORKS: dict[str, str] = {
    "--task": TEXT,
    "--inputs": "",  # no such file
    "--query": "",
    "--limit": "one",
    "--sample": "one",
    "--sample-seed": "zero one negative huge",
    "--where": "",  # no condition
    "--input-format": "",
    "--encoding": "",
    "--key": "",  # no such field
    "--images": "",  # no such field
    "--mcp": "",  # no such program
    "--schema": "",
    "--tools": "",
    "--runtime": "",
    "--workdir": "",
    "--config": "",
    "--backend": TEXT,  # not opened
    "--backends": "",  # no JSON object
    "--model": TEXT,
    "--fallback": TEXT,  # not opened
    "--lane": "",
    "--temperature": "zero one huge huge-float",
    "--max-tokens": "one",
    "--seed": "zero one negative",
    "--top-p": "one",
    "--stop": TEXT,
    "--extra": "",  # no NAME=VALUE
    "--prices": "",
    "--samples": "one",
    "--models": TEXT,  # not opened
    "--score": "",  # no scorer
    "--tool-mode": "",
    "--shared-results": "",
    "--max-inflight": "one negative",
    "--max-agents": "one negative",
    "--max-turns": "one",
    "--max-retries": "zero one",
    "--max-total-tokens": "one",
    "--max-usd": "one huge huge-float",
    "--rpm": "one",
    "--tpm": "one",
    "--deadline": "one",
    "--timeout-per-agent": "one",
    "--timeout-per-turn": "one",
    "--timeout-per-tool": "one",
    "--system-prompt": TEXT,
    "--fields": "",  # no such field
    "--oversized": "",
    "--no-hoist": "zero one",
    "--no-reorder": "zero one",
    "--strict-prefix": "zero one",
    "--log-requests": TEXT,  # not opened
    "--tokens": "zero one",
    "--exact": "zero",
    "--checkpoint": TEXT,  # not written
    "--run": "",  # not of a server
}

USUAL_MISTAKES = ("negative", "empty", "spaces")
"""Edges that are tried each time. The others are slow tests: reading a command line takes a tenth of a second."""
GROUPS = [
    pytest.param(USUAL_MISTAKES, id="usual mistakes"),
    pytest.param([edge for edge in EDGES if edge not in USUAL_MISTAKES], id="others", marks=pytest.mark.slow),
]


def test_every_flag_has_a_row_of_edge_values() -> None:
    shown = [argument.name for argument in app["lint"].assemble_argument_collection() if argument.show]
    assert sorted(WORKS) == sorted(shown)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The task names no")
@pytest.mark.parametrize("edges", GROUPS)
@pytest.mark.parametrize("flag", WORKS)
def test_a_flag_accepts_an_edge_value_or_is_named_in_the_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    edges: Sequence[str],
) -> None:
    (tmp_path / "in.jsonl").write_text('{"it": "a"}\n')
    monkeypatch.chdir(tmp_path)
    usual = {"--task": "Do {it}", "--inputs": "in.jsonl"}
    others = [word for name, said in usual.items() if name != flag for word in (name, said)]
    for edge in edges:
        if (flag, edge) == ("--exact", "one"):
            continue  # it opens the backend
        monkeypatch.setattr(sys, "argv", ["batch-agent", "lint", *others, f"{flag}={EDGES[edge]}"])
        with naming(edge):
            with pytest.raises(SystemExit) as ended:
                main()
            said = capsys.readouterr().err
            assert "Traceback" not in said
            if edge.replace(" ", "-") in WORKS[flag].split():
                assert ended.value.code in (0, 1), said  # 1: the prompts could share more
            else:
                assert ended.value.code == 2
                assert said.startswith("batch-agent: ")


@pytest.mark.parametrize("words", [["run", "--out", ""], ["run", "--checkpoint="], ["export", "x", "--out", ""]])
def test_an_empty_value_is_no_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["batch-agent", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "needs a value, got an empty string." in capsys.readouterr().err
