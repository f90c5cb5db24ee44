"""Our own backends as clients of the gateway: requests and replies arrive unchanged."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.completion_services import NEVER_STREAM_EARLY, STREAM_AT_ONCE, FakeService, gateway_client
from yarl import URL

from batch_agent import BackendError, ErrorKind
from batch_agent.backends.dialects.anthropic.encoder import AnthropicMessages
from batch_agent.backends.dialects.dialect import Dialect
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.backends.flavors import OpenAIExtensions
from batch_agent.backends.http.client import ServerClient
from batch_agent.backends.http.transport_selection import open_transport
from batch_agent.backends.http_backend import HttpBackend
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
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.requests import Delta, FinishReason, Reply, Request, Sampling, Usage
from batch_agent.engine.reply_assembly import collect
from batch_agent.programs.gateway.anthropic_protocol import AnthropicProtocol
from batch_agent.programs.gateway.api_protocol import ApiProtocol, ResponseMeta
from batch_agent.programs.gateway.openai_protocol import OpenAIProtocol

TRAITS = Traits("test", "m", native_tools=True, json_schema=True, json_schema_with_tools=True, inflight=4)
ENVELOPE = ResponseMeta("1", 0, "m")
OPENAI, ANTHROPIC = OpenAIProtocol(), AnthropicProtocol()
PAIRS: list[tuple[ApiProtocol, Dialect]] = [
    (OPENAI, OpenAIChat(OpenAIExtensions(reasoning_field="reasoning_content"))),
    (ANTHROPIC, AnthropicMessages()),
]
dialects = pytest.mark.parametrize("dialect", [dialect for _, dialect in PAIRS], ids=["openai", "anthropic"])
ways = pytest.mark.parametrize(
    ("stream", "is_late"), [(False, False), (True, False), (True, True)], ids=["plain", "streamed", "late"]
)

texts = st.text(max_size=12)
words_of_some = st.text('abcß\n"\\ 1', min_size=1, max_size=8)
names = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
objects = st.dictionaries(texts, texts | st.integers(-9, 9) | st.none() | st.lists(texts, max_size=2), max_size=3)
calls = st.lists(st.builds(ToolCall, names, names, objects.map(lambda each: orjson.dumps(each).decode())), max_size=3)
signed = st.builds(Thought, words_of_some, words_of_some) | st.builds(lambda data: Thought("", "", data), words_of_some)
usages = st.builds(
    lambda cached, more, output: Usage(cached + more, cached, output),
    *[st.integers(0, 9999)] * 3,
)


@st.composite
def replies(draw: st.DrawFn, is_signed: bool) -> Reply:
    made = {call.id: call for call in draw(calls)}
    ends: list[FinishReason] = ["calls"] if made else ["stop", "refusal"]
    if not made or list(made.values())[-1].arguments != "{}":  # which might be cut off before its first argument
        ends.append("length")
    thoughts = draw(st.lists(signed, max_size=2)) if is_signed else []
    thoughts += draw(st.lists(st.builds(Thought, words_of_some), max_size=1))  # several would be read as one
    return Reply(draw(texts), draw(st.sampled_from(ends)), draw(usages), tuple(made.values()), tuple(thoughts))


def put_together(deltas: Iterable[Delta]) -> Reply:
    async def each() -> AsyncIterator[Delta]:
        for delta in deltas:
            yield delta

    try:
        collect(each(), lambda: 0.0).send(None)  # nothing in it waits, so it needs no loop
    except StopIteration as done:
        reply: Reply = done.value[0]
    return reply


def through(reply: Reply, protocol: ApiProtocol, dialect: Dialect) -> Iterable[Iterable[Delta]]:
    """The reply, whole and streamed."""
    decoder = dialect.decoder()
    yield dialect.decode_reply(protocol.reply(reply, ENVELOPE))
    yield list(decoder.feed(protocol.events(reply, ENVELOPE)))


@given(replies(is_signed=False))
def test_an_encoded_openai_reply_is_decoded_unchanged(reply: Reply) -> None:
    for deltas in through(reply, *PAIRS[0]):
        assert put_together(deltas) == reply


@given(replies(is_signed=True))
def test_an_encoded_anthropic_reply_is_decoded_unchanged(reply: Reply) -> None:
    for deltas in through(reply, *PAIRS[1]):
        assert put_together(deltas) == reply


histories = st.lists(
    st.builds(User, words_of_some)
    | st.builds(
        lambda made: (Assistant("Look.", (made,)), ToolResults((ToolResult(made, "one", False),))),
        calls.filter(bool).map(lambda made: made[0]),
    )
    | st.builds(lambda text, thought: Assistant(text, (), (thought,)), names, st.builds(Thought, words_of_some)),
    max_size=6,
).map(lambda received: [each for part in received for each in (part if isinstance(part, tuple) else (part,))])


@given(histories, st.sampled_from(PAIRS))
def test_a_conversation_is_decoded_unchanged_and_only_appended_to(
    received: list[Message], pair: tuple[ApiProtocol, Dialect]
) -> None:
    protocol, dialect = pair
    messages = (User("Begin."), *received)
    prompt = Prompt("Be brief.", (ToolSpec("read", "Reads.", {"type": "object", "properties": {}}),))
    before: tuple[Message, ...] = ()
    for number in range(1, len(messages) + 1):
        sent = Request(prompt, messages[:number], "m", Sampling(max_tokens=9))
        request = protocol.read(json.loads(dialect.encode(sent))).request
        assert request.messages[: len(before)] == before
        assert (request.system, request.tools) == (prompt.system, prompt.tools)
        before = request.messages
    assert before == messages


CALLS = Reply(
    "\nLet me see.",
    "calls",
    Usage(100, 60, 7),
    (ToolCall("c1", "read", '{"path":"/work/é.txt"}'), ToolCall("c2", "read", "{}")),
    (Thought("Hm, /work it is."),),
)
REQUEST = Request(
    Prompt(
        "Be brief, in /runs/1.", (ToolSpec("read", "Reads in /runs/1.", {"type": "object", "description": "/runs/1"}),)
    ),
    (User("What is in /runs/1/é.txt?"),),
    "gpt",
    Sampling(0.5, 0.9, None, 99, ("END",)),
    answer_schema={"type": "object", "title": "/runs/1"},
    may_call_tools=False,
)
HIDES = {"/runs/1": "/work"}


@asynccontextmanager
async def asking(service: FakeService, dialect: Dialect) -> AsyncIterator[HttpBackend]:
    async with gateway_client(service, STREAM_AT_ONCE if service.is_late else NEVER_STREAM_EARLY, HIDES) as caller:
        root = URL(caller.gateway.url) / "v1"
        backend = HttpBackend(ServerClient(open_transport(root, {"x-api-key": caller.key}), root), dialect, TRAITS)
        try:
            yield backend
        finally:
            await backend.aclose()


async def ask(backend: HttpBackend, service: FakeService, *messages: Message, stream: bool) -> Reply:
    request = Request(REQUEST.prompt, messages, "gpt", REQUEST.sampling, REQUEST.answer_schema, False, stream)
    async with backend.stream(request) as deltas:
        service.may_answer.set()  # the stream has begun
        return (await collect(aiter(deltas), lambda: 0.0))[0]


@dialects
@ways
async def test_an_http_backend_can_use_the_gateway_as_a_server(dialect: Dialect, stream: bool, is_late: bool) -> None:
    service = FakeService([CALLS, Reply("Done.", "stop", Usage(5, 0, 1))], is_late=is_late)
    async with asking(service, dialect) as backend:
        first = await ask(backend, service, *REQUEST.messages, stream=stream)
        again = Assistant(first.text, first.calls, first.thoughts)
        results = ToolResults(tuple(ToolResult(call, "See /runs/1.") for call in first.calls))
        second = await ask(backend, service, *REQUEST.messages, again, results, stream=stream)
    assert first.text == CALLS.text
    assert [call.arguments for call in first.calls] == ['{"path":"/runs/1/é.txt"}', "{}"]
    assert (first.thoughts, first.usage, first.finish) == ((Thought("Hm, /runs/1 it is."),), CALLS.usage, "calls")
    assert (second.text, second.usage) == ("Done.", Usage(5, 0, 1))

    request = service.request
    assert "/runs/1" not in str(request)
    assert request.system == "Be brief, in /work."
    assert request.tools == (ToolSpec("read", "Reads in /work.", {"type": "object", "description": "/work"}),)
    assert request.answer_schema == {"type": "object", "title": "/work"}
    assert request.tool_choice == "none"
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.stop) == (0.5, 0.9, 99, ("END",))
    received = Assistant(CALLS.text, CALLS.calls, CALLS.thoughts)
    given = ToolResults(tuple(ToolResult(call, "See /work.") for call in CALLS.calls))
    assert request.messages == (User("What is in /work/é.txt?"), received, given)


@dialects
@ways
@pytest.mark.parametrize(
    ("kind", "heard"),
    [
        (ErrorKind.CONTEXT_OVERFLOW, (ErrorKind.CONTEXT_OVERFLOW,)),
        (ErrorKind.BUDGET, (ErrorKind.BAD_REQUEST,)),
        (ErrorKind.RATE_LIMITED, (ErrorKind.RATE_LIMITED,)),
        (ErrorKind.SERVER, (ErrorKind.SERVER, ErrorKind.UNAVAILABLE)),  # 502 is what a gateway says
    ],
)
async def test_a_failure_keeps_its_kind_through_the_gateway(
    dialect: Dialect, stream: bool, is_late: bool, kind: ErrorKind, heard: tuple[ErrorKind, ...]
) -> None:
    service = FakeService([BackendError(kind, "It went wrong.")], is_late=is_late)
    async with asking(service, dialect) as backend:
        with pytest.raises(BackendError, match="It went wrong") as raised:
            await ask(backend, service, *REQUEST.messages, stream=stream)
    assert raised.value.kind in heard
    assert len(service.received) == 1
