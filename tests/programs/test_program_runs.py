"""Whole runs whose agents are programs: processes that ask over HTTP, in working copies, on a scripted model."""

import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel
from tests.support.forked_programs import Programs

from batch_agent import BatchAgent, ErrorKind, ProcessRuntime, SpecError, Traces, read_request_log
from batch_agent.core.requests import Usage
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import ScriptedBackend, by_turn, call, say

_PROGRAM = """
    import json, os, sys, urllib.request

    def ask(messages):
        tool = {"name": "note", "description": "Note it", "parameters": {"type": "object", "properties": {}}}
        body = {"model": sys.argv[1], "messages": messages, "tools": [{"type": "function", "function": tool}]}
        asked = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
            {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"})
        return json.load(urllib.request.urlopen(asked, timeout=60))["choices"][0]["message"]

    told = {"system": "You are in " + os.getcwd(), "user": sys.stdin.read()}
    messages = [{"role": role, "content": text} for role, text in told.items()]
    for _ in range(20):
        said = ask(messages)
        messages.append(said)
        if not said.get("tool_calls"):
            print(said["content"])
            break
        for each in said["tool_calls"]:
            with open("notes.txt", "a") as file:
                file.write("noted\\n")
            messages.append({"role": "tool", "tool_call_id": each["id"], "content": "noted"})
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "read.me").write_text("as it was\n")
    return folder


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(_PROGRAM))
    return [sys.executable, "-S", str(file), "{model}"]


def scripted(*, seconds: float = 0.0) -> ScriptedBackend:
    return ScriptedBackend(
        by_turn(call("note"), say("all noted", Usage(100, 50, 10))), seconds=seconds, context_tokens=8_000
    )


@pytest.mark.slow
async def test_each_agent_has_a_program_and_a_copy_of_the_folder(program: list[str], project: Path) -> None:
    backend = scripted()
    results = await BatchAgent.run(
        task="Note {it}", inputs=["a", "b", "c"], backend=backend, runtime=ProcessRuntime(program, workdir=project)
    )
    assert [(result.output, result.turns, result.usage.cached) for result in results] == [("all noted", 2, 50)] * 3
    assert [call.name for result in results for call in result.tool_calls] == ["note"] * 3
    assert [str(result.changes) for result in results] == ["1 file changed, +1 -0"] * 3
    assert [file.name for file in project.iterdir()] == ["read.me"]
    assert len({request.prompt.system for request in backend.requests}) == 1
    assert len({id(request.prompt) for request in backend.requests}) == 1


async def test_a_second_run_with_the_checkpoint_starts_no_program(
    program: list[str], project: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"task": "Note {it}", "inputs": ["a", "b"], "checkpoint_dir": tmp_path / "kept"}
    first = await BatchAgent.run(backend=scripted(), runtime=ProcessRuntime(program, workdir=project), **options)
    backend = scripted()
    second = await BatchAgent.run(backend=backend, runtime=ProcessRuntime(program, workdir=project), **options)
    assert [(r.output, r.changes, r.transcript) for r in second] == [(r.output, r.changes, r.transcript) for r in first]
    assert backend.requests == []
    assert (tmp_path / "kept" / "report.html").exists()


async def test_the_request_log_names_the_agent_of_each_request_of_a_program(program: list[str], tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    results = await BatchAgent.run(
        task="Note {it}",
        inputs=[{"it": "a", "id": "A"}, {"it": "b", "id": "B"}],
        key="id",
        backend=scripted(),
        runtime=ProcessRuntime(program),
        log_requests=log,
    )
    assert all(result.ok for result in results)
    lines = list(read_request_log(log))
    assert sorted((line["index"], line["turn"], line["key"]) for line in lines) == [
        (0, 1, "A"),
        (0, 2, "A"),
        (1, 1, "B"),
        (1, 2, "B"),
    ]
    assert all(line["agent"] == line["key"] for line in lines)


async def test_spans_have_what_a_program_sent_and_what_its_tools_returned(program: list[str]) -> None:
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    [result] = await BatchAgent.run(
        task="Note {it}",
        inputs=["a"],
        backend=scripted(),
        runtime=ProcessRuntime(program),
        events=[Traces(provider, content=True)],
    )
    assert result.ok
    attributes = [(span.name, dict(span.attributes or {})) for span in memory.get_finished_spans()]
    turns = [each for name, each in attributes if name.startswith("chat")]
    assert len(turns) == result.turns == 2
    assert all("Note a" in str(turn["gen_ai.input.messages"]) for turn in turns)
    [noted] = [each for name, each in attributes if name == "execute_tool note"]
    assert noted["gen_ai.tool.call.result"] == "noted"
    assert str(noted["gen_ai.tool.call.id"]) in str(turns[1]["gen_ai.input.messages"])


async def test_an_invalid_answer_is_requested_from_the_program_again(program: list[str]) -> None:
    class Count(BaseModel):
        notes: int

    backend = ScriptedBackend(
        lambda request: say('{"notes": 3}' if "cannot be used" in str(request.messages) else "three notes")
    )
    [result] = await BatchAgent.run(
        task="Note {it}", inputs=["a"], backend=backend, runtime=ProcessRuntime(program), output_schema=Count
    )
    assert result.output == Count(notes=3)
    assert result.turns == 2


@pytest.mark.slow
async def test_a_budget_counts_the_requests_of_programs(program: list[str]) -> None:
    results = await BatchAgent.run(
        task="Note {it}",
        inputs=[str(n) for n in range(8)],
        backend=ScriptedBackend(lambda _: say("noted", Usage(300, 0, 100))),
        runtime=ProcessRuntime(program),
        max_total_tokens=2_000,
        max_tokens=100,
        max_agents=2,
    )
    spent = sum(result.usage.input + result.usage.output for result in results)
    assert 800 <= spent <= 2_000
    assert {result.error.kind for result in results if result.error} == {ErrorKind.BUDGET}


async def test_without_the_gateway_programs_call_the_server_directly(program: list[str]) -> None:
    with SimServer(SimConfig(zero_latency=True), Script()) as sim:
        runtime = ProcessRuntime(program, gateway=False, backend=sim.url)
        results = await BatchAgent.run(task="Note {it}", inputs=["a", "b"], runtime=runtime)
        assert all(result.ok for result in results)
        assert results.usage == Usage()  # a program that does not tell is not known to have asked anything


async def test_a_failed_program_is_reported_with_its_reason(project: Path) -> None:
    runtime = ProcessRuntime([sys.executable, "-c", "import sys; sys.exit('no such model: x')"], workdir=project)
    [result] = await BatchAgent.run(task="Note {it}", inputs=["a"], backend=scripted(), runtime=runtime)
    assert result.error is not None
    assert result.error.kind is ErrorKind.PROGRAM
    assert "no such model: x" in result.error.message


async def test_options_that_a_runtime_does_not_support_are_rejected_before_anything_starts(program: list[str]) -> None:
    runtime, backend = ProcessRuntime(program), scripted()
    asked: dict[str, Any] = {"task": "Note {it}", "inputs": ["a"], "backend": backend, "runtime": runtime}
    for options, why in (
        ({"tools": [len]}, "a program brings its own"),
        ({"oversized": "chunk"}, "is for agents without a runtime"),
        ({"runtime": ProcessRuntime(["no-such-program-here"])}, "no-such-program-here"),
        ({"runtime": ProcessRuntime(program, workdir="no/such/folder")}, "no/such/folder"),
    ):
        with pytest.raises(SpecError, match=why):
            await BatchAgent.run(**{**asked, **options})
    with pytest.raises(SpecError, match="cannot predict the requests of programs"):
        await BatchAgent.plan(**asked)
    with pytest.raises(SpecError, match="needs a backend with an address"):
        await BatchAgent.run(**{**asked, "runtime": ProcessRuntime(program, gateway=False)})
    assert backend.requests == []


@pytest.fixture
def programs() -> Iterator[Programs]:
    with Programs() as started:
        yield started


@pytest.mark.slow
def test_ctrl_c_ends_the_programs_of_a_run(programs: Programs, tmp_path: Path) -> None:
    mark = f"batch-agent-test-{os.getpid()}-{time.monotonic_ns()}"
    began = tmp_path / "began"
    (tmp_path / "mine.py").write_text(
        "from batch_agent import ProcessRuntime\n"
        f"code = \"import os, sys, time; os.fork(); open({str(began)!r}, 'a').write('x'); time.sleep(600)\"\n"
        f"waits = ProcessRuntime([{sys.executable!r}, '-S', '-c', code, {mark!r}])\n"
    )
    (tmp_path / "in.jsonl").write_text('{"it": "a"}\n{"it": "b"}\n')
    with SimServer(SimConfig(zero_latency=True), Script()) as sim:
        words = ("run", "--task", "Do {it}", "--inputs", "in.jsonl", "--backend", sim.url, "--runtime", "mine:waits")
        run = programs.start_command(*words, cwd=tmp_path)
        _until(lambda: began.exists() and len(began.read_text()) >= 4)
        assert _alive(mark)
        run.send_signal(signal.SIGINT)
        assert run.wait() == 130
    _until(lambda: not _alive(mark))


def _alive(mark: str) -> list[str]:
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and mark.encode() in (place / "cmdline").read_bytes():
                found.append(place.name)
        except OSError:
            pass  # it is gone by now
    return found


def _until(holds: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)
