"""`Traces(content=True)`: prompts, answers, tool arguments and results in spans, masked and cut."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.loopback_servers import Line, RawRequest, raw_server

from batch_agent import BatchAgent, Flow, SpecError, Tool, Traces, read_request_log
from batch_agent.core.messages import (
    Assistant,
    Message,
    Prompt,
    Thought,
    ToolCall,
    ToolResult,
    ToolResults,
    ToolSpec,
    User,
)
from batch_agent.core.requests import EncodedRequest, Exchange, Reply, Request, Sampling, Usage
from batch_agent.observe.telemetry.message_content import RunContents, cut, fair_limit
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import ScriptedBackend, by_turn, call, say

KEY = "sk-very-secret-0123456789"
MODELS = json.dumps({"data": [{"id": "m"}]}).encode()
ONLY_WITH_CONTENT = {
    "gen_ai.response.model",
    "server.address",
    "server.port",
    "gen_ai.system_instructions",
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.tool.definitions",
    "gen_ai.tool.call.id",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
    "openinference.span.kind",
    "input.value",
    "output.value",
}


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True, max_model_len=1_200), Script(answer_tokens=8)) as server:
        yield server


class Exported:
    """A provider of tracers, and the spans that have ended."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._memory))

    def named(self, beginning: str) -> list[ReadableSpan]:
        return [span for span in self._memory.get_finished_spans() if span.name.startswith(beginning)]

    def attributes(self, beginning: str) -> list[dict[str, Any]]:
        return [dict(span.attributes or {}) for span in self.named(beginning)]

    @property
    def text(self) -> str:
        return "".join(span.to_json() for span in self.named(""))


@Tool.define(effect="pure")
async def look(key: str) -> str:
    """Look something up."""
    return f"about {key}"


def texts(messages: str) -> list[str]:
    """All texts of messages, in order; arguments as JSON."""
    parts = [part for message in json.loads(messages) for part in message["parts"]]
    found = [part.get("content", part.get("response", part.get("arguments"))) for part in parts]
    return [each if isinstance(each, str) else json.dumps(each) for each in found]


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streamed"])
async def test_spans_have_what_was_sent_and_what_was_answered(sim: SimServer, streaming: bool) -> None:
    exported = Exported()
    [result] = await BatchAgent.run(
        task="Describe {it}",
        inputs=["the sea"],
        tools=[look],
        system_prompt="Be brief.",
        backend=sim.url,
        model="sim",
        streaming=streaming,
        events=[Traces(exported.provider, content=True)],
    )
    first, last = exported.attributes("chat")
    task = {"role": "user", "parts": [{"type": "text", "content": "Describe the sea"}]}
    [made] = [each for message in result.transcript if isinstance(message, ToolResults) for each in message.results]
    arguments = json.loads(made.call.arguments)
    asked = {"type": "tool_call", "id": made.call.id, "name": "look", "arguments": arguments}
    told = {"type": "tool_call_response", "id": made.call.id, "response": made.content}
    assert json.loads(first["gen_ai.input.messages"]) == [task]
    assert json.loads(first["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [asked], "finish_reason": "tool_call"}
    ]
    assert json.loads(last["gen_ai.input.messages"]) == [
        task,
        {"role": "assistant", "parts": [asked]},
        {"role": "tool", "parts": [told]},
    ]
    answer = {"role": "assistant", "parts": [{"type": "text", "content": result.text}], "finish_reason": "stop"}
    assert json.loads(last["gen_ai.output.messages"]) == [answer]
    for turn in (first, last):
        assert json.loads(turn["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
        [tool] = json.loads(turn["gen_ai.tool.definitions"])
        assert (tool["type"], tool["name"], tool["description"]) == ("function", "look", "Look something up.")
        assert tool["parameters"]["required"] == ["key"]
        assert turn["gen_ai.response.model"] == "sim"
        assert f"http://{turn['server.address']}:{turn['server.port']}" == sim.url
    [executed] = exported.attributes("execute_tool")
    assert executed["gen_ai.tool.call.id"] == made.call.id
    assert json.loads(executed["gen_ai.tool.call.arguments"]) == arguments
    assert executed["gen_ai.tool.call.result"] == made.content == f"about {arguments['key']}"
    [agent] = exported.attributes("invoke_agent")
    assert json.loads(agent["gen_ai.input.messages"]) == [task]
    assert json.loads(agent["gen_ai.output.messages"]) == [answer]
    assert (agent["input.value"], agent["output.value"]) == ("Describe the sea", result.text)
    [run] = exported.attributes("invoke_workflow")
    assert texts(run["gen_ai.input.messages"]) == ["Describe {it}"]
    assert run["openinference.span.kind"] == "CHAIN"


async def test_without_content_spans_have_no_more_attributes_and_requests_are_not_recorded(sim: SimServer) -> None:
    names: list[set[str]] = []
    for content in (False, True):
        exported = Exported()
        traces = Traces(exported.provider, content=content)
        await BatchAgent.run(
            task="{it}", inputs=["a"], tools=[look], backend=sim.url, model="sim", system_prompt="b", events=[traces]
        )
        names.append({name for each in exported.attributes("") for name in each})
        assert traces.wants_exchanges == content
    without, with_content = names
    assert with_content - without == ONLY_WITH_CONTENT
    assert without < with_content
    code = f"""
import sys
from opentelemetry.sdk.trace import TracerProvider
from batch_agent import BatchAgent, Traces
traces = Traces(TracerProvider())
BatchAgent.run_sync(task="Say {{it}}", inputs=["a"], backend={sim.url!r}, progress=False, events=[traces])
print([name for name in sys.modules if name.endswith(("exchange_recorder", "observed_backend"))])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"


async def test_the_key_of_the_server_is_masked_wherever_it_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    exported = Exported()
    monkeypatch.setenv("VLLM_API_KEY", KEY)

    @Tool.define
    async def read_env(name: str) -> str:
        """Read a variable."""
        return f"{name}={KEY}"

    called = {"name": "read_env", "arguments": json.dumps({"name": KEY})}

    async def answer(request: RawRequest, line: Line) -> None:
        if request.method == "GET":
            await line.reply(200, MODELS)
        elif b'"tool"' in request.body:
            await line.say(f"Your key is {KEY}")
        else:
            message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": called}]}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            await line.reply(200, json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode())

    async with raw_server(answer) as server:
        [result] = await BatchAgent.run(
            task="{it}",
            inputs=[f"My key is {KEY}"],
            tools=[read_env],
            system_prompt=f"Keep {KEY}.",
            backend=server.url.replace("http", "vllm"),
            events=[Traces(exported.provider, content=True)],
            progress=False,
        )
    assert result.text == f"Your key is {KEY}"
    assert KEY not in exported.text
    first, last = exported.attributes("chat")
    assert texts(first["gen_ai.input.messages"]) == ["My key is ***"]
    assert texts(last["gen_ai.input.messages"]) == [
        "My key is ***",
        '{"name": "***"}',
        "***=***",
    ]
    assert texts(last["gen_ai.output.messages"]) == ["Your key is ***"]
    assert texts(f'[{{"parts": {last["gen_ai.system_instructions"]}}}]') == ["Keep ***."]
    [executed] = exported.attributes("execute_tool")
    assert executed["gen_ai.tool.call.arguments"] == '{"name": "***"}'
    assert executed["gen_ai.tool.call.result"] == "***=***"


async def test_long_texts_are_cut_and_short_ones_are_whole(sim: SimServer) -> None:
    exported = Exported()

    @Tool.define(effect="pure")
    async def look(key: str) -> str:
        """Look something up."""
        return "long " * 100

    await BatchAgent.run(
        task="Describe {it}",
        inputs=["it"],
        tools=[look],
        backend=sim.url,
        model="sim",
        events=[Traces(exported.provider, content=True, content_chars=120)],
    )
    [executed] = exported.attributes("execute_tool")
    assert executed["gen_ai.tool.call.result"] == "long " * 24 + "... (380 more characters)"
    _, last = exported.attributes("chat")
    task, arguments, result = texts(last["gen_ai.input.messages"])
    assert task == "Describe it"
    assert "key" in json.loads(arguments)
    assert result.endswith(" more characters)")
    assert json.loads(last["gen_ai.tool.definitions"]) == [{"type": "function", "name": "look"}]


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 200))
def test_the_texts_of_an_attribute_fit_and_nothing_is_cut_that_need_not_be(lengths: list[int], total: int) -> None:
    limit = fair_limit(lengths, total)
    kept = [min(length, limit) for length in lengths]
    assert sum(kept) <= total
    if sum(lengths) <= total:
        assert kept == lengths
    else:
        more = sum(min(length, limit + 1) for length in lengths)
        assert more > total


@given(st.text(max_size=40), st.integers(0, 40))
def test_a_text_that_is_cut_keeps_its_beginning(text: str, limit: int) -> None:
    shown = cut(text, limit)
    assert shown == text or (len(text) > limit and shown.startswith(text[:limit]))


async def test_stages_of_a_flow_have_their_own_contents(sim: SimServer) -> None:
    exported = Exported()
    flow = Flow([{"it": "a"}, {"it": "b"}], backend=sim.url, model="sim").map("first", "Say {it}")
    await flow.map("second", "Repeat {it}").run(events=[Traces(exported.provider, content=True)])
    for stage, beginning in (("first", "Say"), ("second", "Repeat")):
        agents = exported.attributes(f"invoke_agent {stage}")
        assert sorted(texts(each["gen_ai.input.messages"])[0] for each in agents) == [
            f"{beginning} a",
            f"{beginning} b",
        ]
        [stage_span] = exported.attributes(f"invoke_workflow {stage}")
        assert texts(stage_span["gen_ai.input.messages"]) == [f"{beginning} {{it}}"]
    sent = sorted(text for turn in exported.attributes("chat") for text in texts(turn["gen_ai.input.messages"]))
    assert sent == ["Repeat a", "Repeat b", "Say a", "Say b"]


async def test_two_runs_at_once_with_the_same_inputs_have_their_own_answers() -> None:
    exported = Exported()
    one = Traces(exported.provider, content=True)

    async def run(answer: str) -> None:
        await BatchAgent.run(task="{it}", inputs=["same"], backend=ScriptedBackend(lambda _: say(answer)), events=[one])

    await asyncio.gather(run("yes"), run("no"))
    by_trace: dict[int, set[str]] = {}
    for span in exported.named("chat"):
        output = str((span.attributes or {})["gen_ai.output.messages"])
        by_trace.setdefault(span.get_span_context().trace_id, set()).update(texts(output))  # type: ignore[union-attr]
    assert sorted(map(sorted, by_trace.values())) == [["no"], ["yes"]]


async def test_a_failed_agent_has_its_prompt_and_no_answer(sim: SimServer) -> None:
    exported = Exported()
    refused = 'no [[sim: {"fault": "400"}]]'
    again = 'again [[sim: {"fault": "500", "times": 1}]]'
    await BatchAgent.run(
        task="{it}",
        inputs=[refused, again],
        backend=sim.url,
        model="sim",
        backoff=0.01,
        events=[Traces(exported.provider, content=True)],
    )
    turns = {texts(turn["gen_ai.input.messages"])[0]: turn for turn in exported.attributes("chat")}
    assert set(turns) == {refused, again}
    assert "gen_ai.output.messages" not in turns[refused]
    assert turns[refused]["error.type"] == "bad_request"
    assert turns[again]["batch_agent.attempts"] == 2
    assert len(texts(turns[again]["gen_ai.output.messages"])) == 1
    agents = {texts(agent["gen_ai.input.messages"])[0]: agent for agent in exported.attributes("invoke_agent")}
    assert "gen_ai.output.messages" in agents[again]
    assert "gen_ai.output.messages" not in agents[refused]


async def test_the_parts_of_a_long_input_have_their_own_prompts(sim: SimServer) -> None:
    exported = Exported()
    await BatchAgent.run(
        task="{it}",
        inputs=["word " * 1_500],
        backend=sim.url,
        model="sim",
        oversized="chunk",
        events=[Traces(exported.provider, content=True)],
    )
    turns = exported.attributes("chat")
    assert len(turns) > 2
    assert all("gen_ai.input.messages" in turn and "gen_ai.output.messages" in turn for turn in turns)


async def test_a_backend_of_the_caller_has_contents_and_no_address() -> None:
    exported = Exported()
    backend = ScriptedBackend(by_turn(call("look", key="x"), say("done")))
    await BatchAgent.run(
        task="{it}", inputs=["a"], tools=[look], backend=backend, events=[Traces(exported.provider, content=True)]
    )
    first, last = exported.attributes("chat")
    assert texts(first["gen_ai.input.messages"]) == ["a"]
    assert texts(last["gen_ai.output.messages"]) == ["done"]
    assert not {"server.address", "server.port", "gen_ai.response.model"}.intersection(first)


async def test_requests_are_traced_and_logged_at_once(sim: SimServer, tmp_path: Path) -> None:
    exported, log = Exported(), tmp_path / "requests.jsonl"
    await BatchAgent.run(
        task="{it}",
        inputs=["a"],
        backend=sim.url,
        model="sim",
        log_requests=log,
        events=[Traces(exported.provider, content=True)],
    )
    assert len(list(read_request_log(log))) == 1
    assert texts(exported.attributes("chat")[0]["gen_ai.input.messages"]) == ["a"]


def test_nothing_is_shown_before_the_secrets_are_known() -> None:
    contents = RunContents(1_000)
    result = ToolResult(ToolCall("c", "look", "{}"), "text")
    assert contents.call("{}", result) == {}
    assert contents.reply(Reply("text", "stop", Usage())) == {}
    assert contents.request("", "agent", 1) == {}
    contents.add(_exchange(User("hello")))
    assert contents.call("{}", result)["gen_ai.tool.call.result"] == "text"


def test_every_kind_of_message_is_encoded() -> None:
    contents = RunContents(1_000)
    calls = (ToolCall("c", "look", "not JSON"), ToolCall("d", "look", "[1]"))
    contents.add(_exchange(User("hello"), Assistant("well", calls, (Thought("hm"), Thought(redacted="x")))))
    encoded = contents.request("", "agent", 1)
    assert json.loads(str(encoded["gen_ai.input.messages"]))[1]["parts"] == [
        {"type": "reasoning", "content": "hm"},
        {"type": "text", "content": "well"},
        {"type": "tool_call", "id": "c", "name": "look", "arguments": "not JSON"},
        {"type": "tool_call", "id": "d", "name": "look", "arguments": [1]},
    ]
    assert (encoded["server.address"], encoded["server.port"]) == ("models.example", 443)
    assert contents.request("", "agent", 1) == {}, "read once"


def test_a_lone_surrogate_can_be_exported() -> None:
    contents = RunContents(1_000)
    contents.add(_exchange(User("a\ud800b")))
    for value in contents.request("", "agent", 1).values():
        str(value).encode()
    for value in contents.call("\ud800", ToolResult(ToolCall("c", "look", ""), "\ud800")).values():
        str(value).encode()


def test_a_limit_of_less_than_a_character_is_refused() -> None:
    with pytest.raises(SpecError, match="content_chars must be an integer >= 1"):
        Traces(TracerProvider(), content=True, content_chars=0)


def _exchange(*messages: Message) -> Exchange:
    prompt = Prompt("Be brief.", (ToolSpec("look", "Look.", {"type": "object"}),))
    sent = EncodedRequest("POST", "https://models.example/v1/chat/completions", {}, {})
    return Exchange(Request(prompt, messages, "m", Sampling(), agent="agent"), sent, 0.0, 1.0)
