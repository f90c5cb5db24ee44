"""`BatchAgent.preview`: the first requests as they would be sent, for every backend, without a server."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.bedrock_server import TOKEN, Heard, Said, bedrock_server, use_keys
from tests.support.recording_proxy import generations, recording_proxy
from tests.unit.api.test_log_requests import OwnBackend

from batch_agent import MCP, BatchAgent, BatchSpec, Preview, ProcessRuntime, SpecError, Tool
from batch_agent.sim import SimServer

NOWHERE = "127.0.0.1:9"
KEY = "sk-very-secret-0123456789"


class Verdict(BaseModel):
    verdict: str
    score: int


@Tool.define(effect="read")
async def look_up(name: str) -> str:
    """Look a name up."""
    return f"found {name}"


OPTIONS: dict[str, Any] = {
    "task": "Review {it}\nin two lines.",
    "inputs": ["a", "b", "c"],
    "system_prompt": "Be brief.",
    "model": "sim",
    "temperature": 0.5,
    "max_tokens": 50,
    "seed": 7,
    "stop": ["END"],
    "extra": {"min_p": 0.1},
    "priority": 2,
    "max_inflight": 1,
}


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "VLLM_API_KEY", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("schema", [None, Verdict], ids=["text", "model"])
@pytest.mark.parametrize("tools", [[], [look_up]], ids=["alone", "tools"])
@pytest.mark.parametrize("scheme", ["vllm", "sglang", "dynamo", "openai"])
async def test_the_preview_is_what_the_server_receives(
    sim: SimServer, monkeypatch: pytest.MonkeyPatch, scheme: str, tools: list[Tool], schema: type | None
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with recording_proxy(sim.url) as proxy:
        options = {**OPTIONS, "backend": proxy.url.replace("http", scheme), "tools": tools, "output_schema": schema}
        preview = await BatchAgent.preview(count=2, **options)
        assert proxy.connections == 0
        await BatchAgent.run(progress=False, **options)
    received = [body for body in generations(proxy) if "Review" in str(body) and '"tool"' not in json.dumps(body)]
    previewed = [request.body for request in preview.requests]
    assert [json.dumps(body) for body in previewed] == [json.dumps(body) for body in received[:2]]
    assert [request.index for request in preview.requests] == [0, 1]
    [sent, *_] = [each for each in proxy.requests if b"Review" in each.body]
    for request in preview.requests:
        assert (request.method, request.url) == ("POST", f"{proxy.url}{sent.path}")
        own = {name.lower(): value for name, value in request.headers.items()}
        masked = {name: "Bearer ***" if name == "authorization" else value for name, value in sent.headers.items()}
        if "x-dynamo-session-id" in own:
            own["x-dynamo-session-id"] = masked["x-dynamo-session-id"]
        assert own.items() <= masked.items()


async def test_an_exact_preview_is_of_the_kind_of_server_that_the_run_finds(sim: SimServer) -> None:
    async with recording_proxy(sim.url) as proxy:
        options = {**OPTIONS, "backend": proxy.url, "output_schema": Verdict, "model": None}
        guessed = await BatchAgent.preview(**options)
        exact = await BatchAgent.preview(exact=True, **options)
        await BatchAgent.run(progress=False, **options)
    received = [body for body in generations(proxy) if "Review" in str(body)]
    assert [request.body for request in exact.requests] == received
    assert (guessed.backend, exact.backend, exact.model, exact.notes) == ("openai-compatible", "sim", "sim", ())
    assert "The kind of server is found when the run connects." in guessed.notes[0]
    assert "response_format" not in guessed.requests[0].body
    assert "response_format" in exact.requests[0].body


async def test_the_preview_of_bedrock_is_what_the_server_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = "bedrock://us-east-1/anthropic.claude-sonnet-4-5-v1:0"
    options = {**OPTIONS, "backend": backend, "model": None, "tools": [look_up], "output_schema": Verdict}

    def answer(heard: Heard) -> Said:
        return Said([{"text": '{"verdict": "good", "score": 1}'}])

    async with bedrock_server(answer) as server:
        use_keys(monkeypatch, server.url, token=TOKEN)
        preview = await BatchAgent.preview(**options)
        assert server.heard == []
        await BatchAgent.run(progress=False, **options)
    assert [request.body for request in preview.requests] == [heard.body for heard in server.heard]
    assert preview.requests[0].headers["Authorization"] == "AWS4-HMAC-SHA256 ***"
    assert preview.requests[0].url.endswith("/model/anthropic.claude-sonnet-4-5-v1%3A0/converse")


@pytest.mark.parametrize(
    ("backend", "model", "path", "header"),
    [
        ("openai://", "gpt", "https://api.openai.com/v1/chat/completions", None),
        ("anthropic://", "claude", "https://api.anthropic.com/v1/messages", "anthropic-version"),
        ("bedrock://eu-west-1/amazon.nova-lite-v1:0", None, "/converse", "Authorization"),
        ("bedrock://eu-west-1?api=mantle", "openai.gpt-oss-120b", "/v1/chat/completions", "Authorization"),
        ("local://", None, "http://127.0.0.1/v1/chat/completions", None),
        ([f"vllm://{NOWHERE}", "vllm://127.0.0.2:9"], "m", f"http://{NOWHERE}/v1/chat/completions", None),
    ],
)
async def test_no_backend_needs_a_server_a_key_or_credentials(
    monkeypatch: pytest.MonkeyPatch, backend: str, model: str | None, path: str, header: str | None
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    preview = await BatchAgent.preview(
        task="Review {it}", inputs=["a"], backend=backend, model=model, output_schema=Verdict
    )
    [request] = preview.requests
    assert request.url.endswith(path)
    assert "Review a" in json.dumps(request.body)
    assert header is None or header in request.headers


async def test_keys_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    preview = await BatchAgent.preview(task="{it}", inputs=[KEY], backend="anthropic://", model="claude")
    assert preview.requests[0].headers["x-api-key"] == "***"
    assert KEY not in str(preview)
    assert KEY not in json.dumps(preview.to_dict())


async def test_what_only_the_server_knows_is_said() -> None:
    preview = await BatchAgent.preview(
        task="{it}", inputs=["a"], backend=f"sglang://{NOWHERE}", tools=[look_up], oversized="chunk"
    )
    text = str(preview)
    assert "Note: The model is the only one that the server has" in text
    assert "Note: Whether the server accepts tools is found when the run connects." in text
    assert "Note: session_id is added if" in text
    assert "Note: An input that exceeds the context window is split" in text
    keyless = await BatchAgent.preview(task="{it}", inputs=["a"], backend="openai://")
    assert keyless.notes == (
        "openai:// has several models: a run needs model=...",
        "The environment variable OPENAI_API_KEY is not set: a run needs it.",
    )


async def test_a_preview_is_readable_and_has_json_data() -> None:
    preview = await BatchAgent.preview(count=1, backend=f"vllm://{NOWHERE}", **OPTIONS)
    lines = str(preview).splitlines()
    assert lines[0] == "First request of 1 of 3 agents, to vllm; not sent."
    assert f"POST http://{NOWHERE}/v1/chat/completions" in lines
    assert '      "content": "Review a' in lines
    assert '        in two lines."' in lines
    data = json.loads(json.dumps(preview.to_dict()))
    assert data["requests"][0]["body"]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (data["total"], data["model"]) == (3, "sim")


async def test_the_prompts_are_in_the_order_of_the_run() -> None:
    inputs = [{"doc": f"{'long text ' * 50}{at % 2}", "q": str(at)} for at in range(4)]
    preview = await BatchAgent.preview(task="{doc} {q}", inputs=inputs, backend=f"vllm://{NOWHERE}", count=9)
    assert [request.index for request in preview.requests] == [0, 2, 1, 3]


async def test_an_input_that_cannot_be_sent_is_shown_as_such() -> None:
    preview = await BatchAgent.preview(
        task="{a}", inputs=[{"a": 1}, {"b": 2}], backend=f"vllm://{NOWHERE}", reorder=False
    )
    assert preview.requests[1].problem is not None
    assert "Input 1 is not sent: bad_input" in str(preview)


async def test_inputs_may_be_an_iterator_of_which_no_more_is_read_than_shown() -> None:
    read: list[int] = []

    async def numbers() -> Any:
        for number in range(100):
            read.append(number)
            yield str(number)

    preview = await BatchAgent.preview(task="{it}", inputs=numbers(), backend=f"vllm://{NOWHERE}", count=2)
    assert (len(preview.requests), len(read), preview.total) == (2, 2, None)


async def test_a_backend_of_the_caller_is_shown_the_data_that_it_receives() -> None:
    preview = await BatchAgent.preview(
        task="{it}", inputs=["a"], backend=OwnBackend(), tools=[look_up], output_schema=Verdict, temperature=0
    )
    [request] = preview.requests
    assert (request.method, request.url) == ("", "")
    assert request.body["messages"] == [{"role": "user", "content": "a"}]
    assert request.body["tools"][0]["function"]["name"] == "look_up"
    assert request.body["answer_schema"]["properties"].keys() == {"verdict", "score"}
    assert "The backend is an object" in preview.notes[0]


@pytest.mark.slow
async def test_tools_of_a_provider_are_part_of_the_preview() -> None:
    server = Path(__file__).parents[2] / "support" / "mcp_server.py"
    preview = await BatchAgent.preview(
        task="{it}", inputs=["a"], backend=f"vllm://{NOWHERE}", tools=[MCP([sys.executable, str(server), "stdio"])]
    )
    assert preview.requests[0].body["tools"]


def test_the_blocking_form_takes_a_spec_or_the_options_of_a_run() -> None:
    spec = BatchSpec.of(backend=f"vllm://{NOWHERE}", **OPTIONS)
    first: Preview = BatchAgent.preview_sync(spec, count=1)
    second = BatchAgent.preview_sync(backend=f"vllm://{NOWHERE}", count=1, progress=False, events=None, **OPTIONS)
    assert first.to_dict() == second.to_dict()


async def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(SpecError, match="count must be an integer >= 1; got 0"):
        await BatchAgent.preview(task="{it}", inputs=["a"], count=0)
    with pytest.raises(SpecError, match="With runtime=, a program makes them"):
        await BatchAgent.preview(
            task="{it}", inputs=["a"], runtime=ProcessRuntime(["true"]), backend=f"vllm://{NOWHERE}"
        )


def test_no_inputs_and_one_can_be_previewed() -> None:
    for inputs in ([], ["a"]):
        preview = BatchAgent.preview_sync(task="{it}", inputs=inputs, backend=f"vllm://{NOWHERE}")
        assert len(preview.requests) == len(inputs)
