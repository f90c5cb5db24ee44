"""File tools in a run over a folder: the path that the prompt shows is a path for them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked_programs import Call

from batch_agent import BatchAgent, Flow, Tool
from batch_agent.core.messages import ToolResults
from batch_agent.core.requests import Request
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import Answer, ScriptedBackend, call, say
from batch_agent.tools import grep_tool, read_file_tool


def reader(request: Request) -> Answer:
    """Reads the file that the prompt names, and answers with what the tool returned."""
    last = request.messages[-1]
    if isinstance(last, ToolResults):
        return say(last.results[0].content)
    return call("read_file", path=request.messages[0].text.removeprefix("Read "))  # type: ignore[union-attr]


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / "deep" / "a.txt").write_text("in the folder")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "docs"


@pytest.mark.parametrize("inputs", ["docs/", "{docs}/", "Path", "docs/**/*.txt", "{docs}/**/*.txt"])
@pytest.mark.parametrize("tool", [Tool.read_file, Tool.summarizable(Tool.read_file), read_file_tool()])
async def test_the_path_in_the_prompt_is_found(docs: Path, inputs: str, tool: Tool) -> None:
    source: Any = Path("docs") if inputs == "Path" else inputs.format(docs=docs)
    results = await BatchAgent.run(
        task="Read {path}", inputs=source, tools=[tool], backend=ScriptedBackend(reader), progress=False
    )
    assert results.outputs == ["in the folder"]


async def test_the_path_is_found_from_any_working_directory(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(request: Request) -> Answer:
        os.chdir(docs.parent / "elsewhere")
        return reader(request)

    for pattern in (f"{docs}/", f"{docs}/**/*.txt"):
        monkeypatch.chdir(docs.parent)
        results = await BatchAgent.run(
            task="Read {path}", inputs=pattern, tools=[Tool.read_file], backend=ScriptedBackend(elsewhere),
            progress=False,
        )  # fmt: skip
        assert results.outputs == ["in the folder"]


async def test_every_stage_of_a_flow_finds_it(docs: Path) -> None:
    flow = (
        Flow("docs/", backend=ScriptedBackend(reader), tools=[Tool.read_file])
        .map("first", "Read {path}")
        .map("second", "Read {path}")
    )
    [item] = (await flow.run()).items
    assert (item["first"], item["second"]) == ("in the folder", "in the folder")


async def test_a_tool_with_a_folder_of_its_own_keeps_it(docs: Path) -> None:
    results = await BatchAgent.run(
        task="Read {path}", inputs="docs/", tools=[read_file_tool(docs.parent / "elsewhere")],
        backend=ScriptedBackend(reader), progress=False,
    )  # fmt: skip
    assert results.outputs == ["FileNotFoundError: there is no file 'deep/a.txt'"]


async def test_other_inputs_leave_the_tools_in_the_working_directory(docs: Path) -> None:
    results = await BatchAgent.run(
        task="Read {path}", inputs=[{"path": "docs/deep/a.txt"}], tools=[Tool.read_file],
        backend=ScriptedBackend(reader), progress=False,
    )  # fmt: skip
    assert results.outputs == ["in the folder"]


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "path"), [("docs/", "deep/a.txt"), ("docs/**/*.txt", "docs/deep/a.txt")])
def test_the_command_line_finds_it_too(docs: Path, call: Call, inputs: str, path: str) -> None:
    directive = [{"calls": [{"name": "read_file", "arguments": {"path": path}}]}, {"text": "done"}]
    (docs / "deep" / "a.txt").write_text(f"[[sim: {json.dumps(directive)}]]")
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=6)) as sim:
        done = call(
            "run", "--task", "Read {path}: {text}", "--inputs", inputs, "--tools", "read_file", "--backend", sim.url,
            "--out", "o.jsonl", cwd=docs.parent,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    row = json.loads((docs.parent / "o.jsonl").read_text())
    assert row["input"]["path"] == path
    assert [(each["name"], each["ok"]) for each in row["tool_calls"]] == [("read_file", True)]


async def test_the_encoding_of_the_run_is_that_of_its_file_tools(docs: Path) -> None:
    (docs / "deep" / "a.txt").write_bytes("Łódź".encode("cp1250"))
    results = await BatchAgent.run(
        task="Read {path}", inputs="docs/", encoding="cp1250", tools=[Tool.read_file], backend=ScriptedBackend(reader),
        progress=False,
    )  # fmt: skip
    assert results.outputs == ["Łódź"]
    assert "Łódź" in grep_tool(docs, encoding="cp1250")(pattern="dź")


def test_text_of_an_unknown_encoding_is_an_error_and_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "sjis.txt").write_bytes("日本語ーア".encode("shift-jis"))
    with pytest.raises(ValueError, match=r"'sjis\.txt' is not UTF-8, and its encoding is not known"):
        read_file_tool(tmp_path)(path="sjis.txt")
    assert read_file_tool(tmp_path, encoding="shift-jis")(path="sjis.txt") == "日本語ーア"
    assert "No line matches" in grep_tool(tmp_path)(pattern="日本")


def test_a_byte_that_is_not_utf8_far_into_a_file_is_shown_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"line\n" * 30_000 + b"caf\xe9\n")
    assert read_file_tool(tmp_path)(path="log.txt", offset=30_001) == "caf\\xe9\n"
    (tmp_path / "paper.pdf").write_bytes(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    assert read_file_tool(tmp_path)(path="paper.pdf").startswith("[a PDF of 15 bytes that cannot be read: ")
