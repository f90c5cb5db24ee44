"""OpenAI's own SDK as the client of the responses API: its types accept all that the gateway sends."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIStatusError, AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from tests.support.completion_services import (
    NEVER_STREAM_EARLY,
    RESPONSES,
    STREAM_AT_ONCE,
    FakeService,
    gateway_client,
)

from batch_agent import BackendError, ErrorKind
from batch_agent.core.messages import Assistant, Thought, ToolCall, ToolResult, ToolResults, User
from batch_agent.core.requests import FinishReason, Reply, Usage
from batch_agent.programs.gateway.api_protocol import ResponseMeta
from batch_agent.programs.gateway.gateway_error import GatewayError
from batch_agent.programs.gateway.responses_protocol import ResponsesProtocol

READ = {"type": "function", "name": "read", "description": "Reads.", "parameters": {"type": "object"}, "strict": False}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches."}
SHELL = {"type": "local_shell"}
SEARCH = {"type": "web_search"}
FILES = {"type": "namespace", "name": "files", "description": "Of files.", "tools": [{**READ, "name": "list"}]}
TOOLS = cast(Any, [READ, PATCH, SHELL, SEARCH, FILES])
BODY: dict[str, Any] = {
    "input": "Hi",
    "model": "gpt",
    "tools": TOOLS,
    "tool_choice": "auto",
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "metadata": {"a": "b"},
}
META = ResponseMeta("1", 7, "m", body=BODY)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PROTOCOL = ResponsesProtocol()

texts = st.text(max_size=12)
words = st.text('abcß\n"\\ 1', min_size=1, max_size=8)
commands = st.lists(words, min_size=1, max_size=2)
json_objects = st.dictionaries(texts, texts | st.integers(-9, 9) | st.none(), max_size=3)
arguments = {
    "read": json_objects,
    "files__list": json_objects,
    "apply_patch": st.fixed_dictionaries({"input": texts}),
    "local_shell": st.fixed_dictionaries({"command": commands}),
}
thoughts = st.builds(Thought, words, texts) | st.builds(lambda data: Thought("", "", data), words)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    names = draw(st.lists(st.sampled_from(sorted(arguments)), max_size=3))
    calls = tuple(
        ToolCall(f"call_{number}", name, orjson.dumps(draw(arguments[name])).decode())
        for number, name in enumerate(names)
    )
    ends: list[FinishReason] = ["calls", "length"] if calls else ["stop", "length", "refusal"]
    usage = Usage(draw(st.integers(50, 99)), draw(st.integers(0, 50)), draw(st.integers(0, 9)))
    return Reply(draw(texts), draw(st.sampled_from(ends)), usage, calls, tuple(draw(st.lists(thoughts, max_size=2))))


@given(replies())
def test_every_reply_and_every_event_is_valid_by_the_types_of_the_sdk(reply: Reply) -> None:
    whole = Response.model_validate_json(PROTOCOL.reply(reply, META))
    events = [EVENT.validate_python(event) for event in events_in(PROTOCOL.events(reply, META))]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == f"response.{whole.status}"
    assert events[-1].response == whole
    assert [event.item for event in events if event.type == "response.output_item.done"] == whole.output
    assert {tool.type for tool in whole.tools} == {"function", "custom", "local_shell", "namespace"}


@given(replies())
def test_a_reply_that_the_program_sends_back_is_decoded_unchanged(reply: Reply) -> None:
    whole = Response.model_validate_json(PROTOCOL.reply(reply, META))
    answered = [{"type": "function_call_output", "call_id": call.id, "output": "done"} for call in reply.calls]
    items = [item.model_dump(mode="json", exclude_none=True) for item in whole.output]
    request = PROTOCOL.read({**BODY, "input": [{"role": "user", "content": "Hi"}, *items, *answered]}).request
    expected = [User("Hi"), Assistant(reply.text, reply.calls, reply.thoughts)]
    results = ToolResults(tuple(ToolResult(call, "done") for call in reply.calls))
    assert request.messages == (*expected, *([results] if reply.calls else []))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GatewayError("It failed.", status=502), "server_error"),
        (GatewayError("Slow down.", status=429, code="rate_limit_exceeded"), "rate_limit_exceeded"),
        (GatewayError("No."), "invalid_prompt"),
    ],
)
def test_a_failure_in_a_stream_is_valid_by_the_types_of_the_sdk(error: GatewayError, code: str) -> None:
    events = [EVENT.validate_python(event) for event in events_in(PROTOCOL.error_event(error, META))]
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert (events[-1].response.error.code, events[-1].response.error.message) == (code, str(error))


def events_in(stream: bytes) -> Iterator[dict[str, Any]]:
    for block in stream.decode().split("\n\n")[:-1]:
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        yield event


CALLS = Reply(
    "Let me see.",
    "calls",
    Usage(100, 60, 7),
    (
        ToolCall("c1", "read", '{ "path": "/work/é.txt" }'),
        ToolCall("c2", "apply_patch", '{"input": "*** /work/a"}'),
        ToolCall("c3", "files__list", ""),
        ToolCall("c4", "local_shell", '{"command": ["ls", "/work"]}'),
    ),
    (Thought("Hm, /work it is."),),
)
DONE = Reply("Done in /work.", "stop", Usage(5, 0, 1))


@asynccontextmanager
async def sdk(service: FakeService) -> AsyncIterator[AsyncOpenAI]:
    pace = STREAM_AT_ONCE if service.is_late else NEVER_STREAM_EARLY
    async with gateway_client(service, pace, {"/runs/1": "/work"}) as caller:
        url = caller.gateway.url + RESPONSES.removesuffix("/responses")
        async with AsyncOpenAI(base_url=url, api_key=caller.key) as client:
            yield client


async def answer(client: AsyncOpenAI, way: str, service: FakeService, **body: Any) -> Any:
    if way == "whole":
        return await client.responses.create(**body)
    async with client.responses.stream(**body) as stream:
        service.may_answer.set()  # the stream has begun
        async for event in stream:
            if event.type in ("response.failed", "response.incomplete"):
                return event.response
        return await stream.get_final_response()


ways = pytest.mark.parametrize(("way", "is_late"), [("whole", False), ("streamed", False), ("streamed", True)])


@pytest.mark.slow
@ways
async def test_the_sdk_completes_a_conversation_with_all_kinds_of_tools(way: str, is_late: bool) -> None:
    service = FakeService([CALLS, DONE], is_late=is_late)
    body = {"model": "gpt", "tools": TOOLS, "store": False, "instructions": "Be brief, in /runs/1."}
    async with sdk(service) as client:
        first = await answer(client, way, service, input="See /runs/1.", **body)
        outputs = [
            {
                "type": f"{item.type}_output",
                "call_id": item.call_id,
                "output": "See /runs/1.",
            }
            for item in first.output
            if hasattr(item, "call_id")
        ]
        said = [item.model_dump(mode="json", exclude_none=True) for item in first.output]
        history: Any = [{"role": "user", "content": "See /runs/1."}, *said, *outputs]
        second = await answer(client, way, service, input=history, **body)
    assert [item.type for item in first.output] == [
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
        "function_call",
        "local_shell_call",
    ]
    _, message, read, patch, listed, shell = first.output
    assert (message.content[0].text, read.arguments) == ("Let me see.", '{ "path": "/runs/1/é.txt" }')
    assert (patch.input, shell.action.command) == ("*** /runs/1/a", ["ls", "/runs/1"])
    assert (listed.name, listed.namespace, listed.arguments) == ("list", "files", "{}")
    assert (first.usage.input_tokens, first.usage.input_tokens_details.cached_tokens) == (100, 60)
    assert (second.output_text, second.status, second.usage.total_tokens) == ("Done in /runs/1.", "completed", 6)

    request = service.request
    assert "/runs/1" not in str(request)
    assert [tool.name for tool in request.tools] == ["read", "apply_patch", "local_shell", "files__list"]
    assert request.system == "Be brief, in /work."
    results = ToolResults(tuple(ToolResult(call, "See /work.") for call in CALLS.calls))
    assert request.messages == (User("See /work."), Assistant(CALLS.text, CALLS.calls, CALLS.thoughts), results)


@ways
async def test_the_sdk_parses_an_answer_with_a_schema(way: str, is_late: bool) -> None:
    class Note(BaseModel):
        ships: int

    service = FakeService([Reply('{"ships": 3}', "stop", Usage(5, 0, 1))], is_late=is_late)
    async with sdk(service) as client:
        if way == "whole":
            found: Any = await client.responses.parse(input="How many?", text_format=Note)
        else:
            found = await answer(client, way, service, input="How many?", model="gpt", text_format=Note)
    assert found.output_parsed == Note(ships=3)
    assert service.request.answer_schema is not None
    assert service.request.answer_schema["required"] == ["ships"]


@ways
@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("refusal", "content_filter")])
async def test_the_sdk_reads_that_a_response_is_incomplete(
    way: str, is_late: bool, finish: FinishReason, reason: str
) -> None:
    service = FakeService([Reply("Half an", finish, Usage(5, 0, 2))], is_late=is_late)
    async with sdk(service) as client:
        response = await answer(client, way, service, input="Hi", model="gpt")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", reason)
    assert (response.output_text, response.usage.output_tokens) == ("Half an", 2)


async def test_the_sdk_raises_the_status_of_a_failed_server_without_its_address() -> None:
    service = FakeService([BackendError(ErrorKind.SERVER, "HTTP 500 from http://gpu-7:8000/v1: broken.", status=500)])
    async with sdk(service) as client:
        with pytest.raises(APIStatusError) as raised:
            await client.responses.create(input="Hi", model="gpt")
        with pytest.raises(APIStatusError, match="previous_response_id is not supported") as refused:
            await client.responses.create(input="Hi", model="gpt", previous_response_id="resp_1")
    assert (raised.value.status_code, raised.value.type) == (502, "server_error")
    assert "gpu-7" not in str(raised.value)
    assert refused.value.status_code == 400
    assert len(service.received) == 1  # the SDK did not repeat it


async def test_the_sdk_reads_a_failure_in_a_stream_that_has_begun() -> None:
    service = FakeService([BackendError(ErrorKind.SERVER, "HTTP 500 from http://gpu-7:8000/v1: broken.")], is_late=True)
    async with sdk(service) as client:
        response = await answer(client, "streamed", service, input="Hi", model="gpt")
    assert (response.status, response.error.code) == ("failed", "server_error")
    assert "gpu-7" not in response.error.message


async def test_a_named_tool_and_a_single_call_are_requested_of_the_model() -> None:
    service = FakeService([DONE])
    async with sdk(service) as client:
        choice, other = [cast(Any, {"type": "function", "name": name}) for name in ("read", "gamma")]
        await client.responses.create(input="Hi", tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
        assert (service.request.tool_choice, service.request.tool_name) == ("required", "read")
        assert service.request.single_call
        with pytest.raises(APIStatusError, match="'gamma', which is not among the tools"):
            await client.responses.create(input="Hi", tools=TOOLS, tool_choice=other)


async def test_nothing_of_a_response_is_stored() -> None:
    async with sdk(FakeService()) as client:
        with pytest.raises(APIStatusError, match="does not exist") as raised:
            await client.responses.retrieve("resp_1")
    assert raised.value.status_code == 404
