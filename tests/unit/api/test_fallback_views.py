"""Runs with a fallback in the report, in traces, in `serve` and in `inspect`."""

import sys
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batch_agent import BatchAgent, Tool, Traces
from batch_agent.cli.app import main
from batch_agent.cli.commands.serve import agent_trace
from batch_agent.core.errors import BackendError, ErrorKind
from batch_agent.core.messages import ToolResults
from batch_agent.core.requests import Request
from batch_agent.observe.report.live_server import served
from batch_agent.observe.report.log_follower import LogFollower
from batch_agent.testing import Answer, ScriptedBackend, call, say


@Tool.define(effect="write")
def save() -> str:
    """Saves."""
    return "saved"


def failing(request: Request) -> Answer:
    if isinstance(request.messages[-1], ToolResults):
        raise BackendError(ErrorKind.CONTEXT_OVERFLOW, "too long")
    return call("save")


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def folder(tmp_path: Path, spans: InMemorySpanExporter) -> Path:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    await BatchAgent.run(
        task="Do {n}",
        inputs=[{"n": 1}],
        tools=[save],
        model="small",
        backend=ScriptedBackend(failing, model="small"),
        fallback=[ScriptedBackend(lambda _: say("an answer"), model="large")],
        checkpoint_dir=tmp_path,
        events=[Traces(provider, content=True)],
    )
    return tmp_path


async def test_the_report_and_traces_have_all_backends(folder: Path, spans: InMemorySpanExporter) -> None:
    assert "fallback 1 (backend)" in (folder / "report.html").read_text()
    attributes = [dict(span.attributes or {}) for span in spans.get_finished_spans()]
    assert {"small", "large"} <= {each.get("gen_ai.request.model") for each in attributes}
    assert any("an answer" in str(each.get("gen_ai.output.messages")) for each in attributes)


async def test_the_dashboard_has_the_conversation_on_each_backend(folder: Path) -> None:
    async with (
        served(LogFollower(folder), partial(agent_trace, folder), "127.0.0.1", 0) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
    ):
        for stage, end in {"small": "too long", "fallback 1 (backend)": "an answer"}.items():
            async with client.get("/agent/0", params={"stage": stage}) as page:
                text = await page.text()
                assert page.status == 200, text
                assert "saved" in text
                assert end in text
        async with client.get("/agent/0", params={"stage": "../small"}) as page:
            assert page.status == 404


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["batch-agent", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    return capsys.readouterr().out


async def test_inspect_names_both_backends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = shown(monkeypatch, capsys, "inspect", str(folder))
    assert "model     small" in summary
    assert "model     large" in summary
    story = shown(monkeypatch, capsys, "inspect", str(folder), "--agent", "0")
    assert story.index("small") < story.index("too long") < story.index("large") < story.index("an answer")
