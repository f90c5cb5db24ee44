"""Real MLflow and real Phoenix receive a run with `Traces(content=True)`, and return prompts, tools and tokens."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from scripts.engines.layout import MLFLOW, PHOENIX, Part
from tests.live.engines import mlflow_server, phoenix_server

from batch_agent import BatchAgent, Results, Tool, Traces
from batch_agent.core.messages import ToolResults
from batch_agent.sim import Script, SimConfig, SimServer

HERE = Path(__file__).parent
ARRIVAL_LIMIT = 60.0
EXPORT_LIMIT = 120
"""Seconds. The first spans wait for the database of the server."""
READ_LIMIT = 120
RUN_LIMIT = 180
EXPERIMENT = {"x-mlflow-experiment-id": "0"}
Json = Any


@Tool.define(effect="pure")
async def look_up(key: str) -> str:
    """Look something up."""
    return f"about {key}: it is blue"


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=8)) as server:
        yield server


@pytest.fixture(scope="module")
def mlflow_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as url:
        yield url


@pytest.fixture(scope="module")
def phoenix_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with phoenix_server(tmp_path_factory.mktemp("phoenix")) as url:
        yield url


async def traced_run(sim: SimServer, url: str, headers: dict[str, str]) -> Results:
    provider = TracerProvider()
    exporter = OTLPSpanExporter(f"{url}/v1/traces", headers=headers, timeout=EXPORT_LIMIT)
    provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_LIMIT * 1_000))
    results = await BatchAgent.run(
        task="Describe {it}",
        inputs=["the sky", "the sea", "a lamp"],
        tools=[look_up],
        system_prompt="Be brief.",
        backend=sim.url,
        model="sim",
        events=[Traces(provider, name="things", content=True)],
        progress=False,
    )
    assert provider.force_flush(EXPORT_LIMIT * 1_000)
    provider.shutdown()
    return results


def read(part: Part, script: str, url: str) -> Json:
    """What the server's own client returns, in the server's own environment."""
    command = [str(part.python), "-W", "ignore", str(HERE / script), url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=READ_LIMIT, check=False)
    assert ended.returncode == 0, ended.stderr[-3_000:]
    return json.loads(ended.stdout)


def call_ids(results: Results) -> list[str]:
    messages = [message for result in results for message in result.transcript]
    return sorted(each.call.id for message in messages if isinstance(message, ToolResults) for each in message.results)


async def test_mlflow_returns_prompts_tools_and_tokens(sim: SimServer, mlflow_url: str) -> None:
    results = await traced_run(sim, mlflow_url, EXPERIMENT)
    found = read(MLFLOW, "read_mlflow.py", mlflow_url)
    spans = found["spans"]
    assert found["tokens"]["input_tokens"] == sum(result.usage.input for result in results)
    assert found["tokens"]["output_tokens"] == sum(result.usage.output for result in results)
    assert "Describe {it}" in found["input"]
    assert [span["kind"] for span in spans if span["name"].startswith("invoke_workflow")] == ["CHAIN"]
    agents = [span for span in spans if span["kind"] == "AGENT"]
    assert sorted(agent["input"] for agent in agents) == sorted(f"Describe {each.input}" for each in results)
    assert sorted(agent["output"] for agent in agents) == sorted(result.text for result in results)
    turns = [span for span in spans if span["kind"] == "CHAT_MODEL"]
    assert len(turns) == sum(result.turns for result in results)
    assert {turn["model"] for turn in turns} == {"sim"}
    assert {turn["tools"][0]["name"] for turn in turns} == {"look_up"}
    assert {turn["attributes"]["server.address"] for turn in turns} == {"127.0.0.1"}
    calls = [span for span in spans if span["kind"] == "TOOL"]
    assert sorted(span["attributes"]["gen_ai.tool.call.id"] for span in calls) == call_ids(results)
    for span in calls:
        assert span["output"] == f"about {span['input']['key']}: it is blue"


async def test_phoenix_returns_prompts_tools_and_tokens(sim: SimServer, phoenix_url: str) -> None:
    results = await traced_run(sim, phoenix_url, {})
    expected = 1 + sum(1 + result.turns + len(result.tool_calls) for result in results)
    deadline = time.monotonic() + ARRIVAL_LIMIT  # Phoenix stores spans after it has answered
    while len(spans := read(PHOENIX, "read_phoenix.py", phoenix_url)) < expected and time.monotonic() < deadline:
        time.sleep(1)
    assert len(spans) == expected
    turns = [span for span in spans if span["kind"] == "LLM"]
    assert sum(turn["llm.token_count.prompt"] for turn in turns) == sum(result.usage.input for result in results)
    assert sum(turn["llm.token_count.completion"] for turn in turns) == sum(result.usage.output for result in results)
    assert {turn["llm.model_name"] for turn in turns} == {"sim"}
    assert {turn["llm.input_messages.0.message.content"] for turn in turns} == {"Be brief."}
    assert {turn["llm.input_messages.1.message.content"] for turn in turns} == {
        f"Describe {result.input}" for result in results
    }
    assert all('"look_up"' in turn["llm.tools.0.tool.json_schema"] for turn in turns)
    answers = {turn.get("llm.output_messages.0.message.content") for turn in turns} - {None, ""}
    assert answers == {result.text for result in results}
    assert [span["kind"] for span in spans if span["name"].startswith("invoke_workflow")] == ["CHAIN"]
    assert sum(span["kind"] == "AGENT" for span in spans) == len(results)
    calls = [span for span in spans if span["kind"] == "TOOL"]
    assert sorted(span["tool.id"] for span in calls) == call_ids(results)
    assert {span["gen_ai.tool.call.result"] for span in calls} == {
        f"about {json.loads(span['gen_ai.tool.call.arguments'])['key']}: it is blue" for span in calls
    }


def test_the_command_line_sends_contents_to_mlflow(sim: SimServer, mlflow_url: str, tmp_path: Path) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": mlflow_url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-mlflow-experiment-id=0",
        "OTEL_EXPORTER_OTLP_TIMEOUT": str(EXPORT_LIMIT),
    }
    (tmp_path / "things.jsonl").write_text('{"it": "a stone"}\n')
    options = {"task": "Name {it}", "inputs": "things.jsonl", "backend": sim.url, "model": "sim"}
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    (tmp_path / "batch.toml").write_text("\n".join([*lines, "traces_content = true", ""]))
    ended = subprocess.run(
        [sys.executable, "-m", "batch_agent", "run"],
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    spans = read(MLFLOW, "read_mlflow.py", mlflow_url)["spans"]
    assert [_text(span["input"]) for span in spans if span["kind"] == "CHAT_MODEL"] == ["Name a stone"]


def _text(messages: Json) -> str:
    [message] = messages
    [part] = message["parts"]
    return str(part["content"])
