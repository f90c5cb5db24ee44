"""Whatever an agent lives through: what the model reads in a turn begins with all that it read in the one before.

Compared is what a server puts into the model's prompt, in the order in which it does: the tools, the system prompt, the
messages, as the very bytes of the body. Marks for managed caches (cache_control, cachePoint) are taken out first: they
say up to where to cache, may move with the turns by design, and are never read by the model. Nobody knows the window
of the models here, so that no life is compacted, which by design shortens what was read before.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, assert_never

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.test_bedrock_dialect import CLAUDE, any_text, thoughts
from tests.support.conversations import City
from tests.support.plans import plan

from batch_agent.agent.conversation import CallTools, Conversation, Done, Generate
from batch_agent.backends import flavors
from batch_agent.backends.dialects.anthropic.encoder import AnthropicMessages
from batch_agent.backends.dialects.bedrock.encoder import BedrockConverse, supports_schema
from batch_agent.backends.dialects.dialect import Dialect
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.backends.embedded import add_schema_hints
from batch_agent.backends.flavors import Flavor
from batch_agent.core.agent_config import ToolMode
from batch_agent.core.facts import Replied, Returned
from batch_agent.core.messages import ToolCall, ToolResult, ToolSpec
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.requests import FinishReason, Reply, Request, Usage
from batch_agent.plan.compile import Plan

TOOLS = (
    ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "integer"}, "é": {}}, "required": []}),
    ToolSpec("ask", "Asks.", {"properties": {"b": {"enum": ["ü", 1]}, "a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}),
)
MARKS = re.compile(r',?\{"cachePoint":\{[^{}]*\}\}|,?"cache_control":\{[^{}]*\}')
LONG = "Here is how it is done. " * 50
"""Long enough for a mark of its own where the own part of a task begins."""
PLACE = ("model", "cache_salt", "prompt_cache_key", "session_id")
"""What decides in which cache, on which machine, a prefix is looked for."""


@dataclass(frozen=True)
class Wire:
    """A kind of server, and how requests are written for it."""

    name: str
    flavor: Flavor
    dialect: Callable[[], Dialect]
    model: str = "m"

    @property
    def traits(self) -> Traits:
        flavor = self.flavor
        keeps = supports_schema(self.model) if flavor.dialect == "bedrock" else flavor.json_schema
        return Traits(
            self.name,
            self.model,
            native_tools=flavor.native_tools is not False,
            json_schema=keeps,
            json_schema_with_tools=flavor.json_schema_with_tools,
            inflight=8,
            strict_schema=flavor.extensions.strict_schema or flavor in (flavors.ANTHROPIC, flavors.BEDROCK),
        )

    @property
    def modes(self) -> tuple[ToolMode, ...]:
        return ("native", "action") if self.traits.native_tools else ("action",)


def _wires() -> Iterator[Wire]:
    for flavor in vars(flavors).values():
        if isinstance(flavor, Flavor):
            match flavor.dialect:
                case "openai":
                    yield Wire(flavor.name, flavor, partial(OpenAIChat, flavor.extensions))
                case "anthropic":
                    yield Wire(flavor.name, flavor, partial(AnthropicMessages, strict_schema=True))
                case "bedrock":
                    for model in (CLAUDE, "us.amazon.nova-lite-v1:0", "meta.llama3-3-70b-instruct-v1:0"):
                        yield Wire(f"{flavor.name} {model}", flavor, BedrockConverse, model)
                case _:
                    assert_never(flavor.dialect)
    lenient = replace(flavors.VLLM, dialect="anthropic", ignores=flavors.ANTHROPIC.ignores)
    yield Wire("vllm, Anthropic's dialect", lenient, AnthropicMessages)
    no_sessions = replace(flavors.SGLANG.extensions, session_field="")
    yield Wire("sglang without sessions", flavors.SGLANG, partial(OpenAIChat, no_sessions))
    yield Wire("embedded", flavors.LLAMACPP, partial(OpenAIChat, adapt_schema=add_schema_hints))


WIRES = {wire.name: wire for wire in _wires()}
WITH_CALLS = {name: wire for name, wire in WIRES.items() if "native" in wire.modes}
on_every_wire = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
on_every_wire_with_calls = pytest.mark.parametrize("wire", WITH_CALLS.values(), ids=WITH_CALLS)


def _object(space: str, members: list[tuple[str, str]]) -> str:
    return "{" + space + f",{space}".join(f"{name}{space}:{space}{value}" for name, value in members) + space + "}"


def _array(space: str, items: list[str]) -> str:
    return "[" + space + f",{space}".join(items) + space + "]"


SPACES = st.sampled_from(["", " ", "\n  ", "\t"])
NAMES = st.sampled_from(['"b"', '"a"', '"at"', '"\\u00e9"', '"é"', '""'])
SPELLINGS = st.sampled_from(
    [
        "1",
        "1.50",
        "1e3",
        "-0",
        "-0.0",
        "0.1E+2",
        "1" * 30,
        "true",
        "null",
        '"\\u00e9"',
        '"é😀"',
        '"\\/<&\\n"',
        '"\\ud83d"',
    ]
) | st.text(max_size=4).map(json.dumps)
OBJECTS = st.builds(
    _object,
    SPACES,
    st.lists(
        st.tuples(
            NAMES,
            st.recursive(
                SPELLINGS,
                lambda inner: (
                    st.builds(_array, SPACES, st.lists(inner, max_size=2))
                    | st.builds(_object, SPACES, st.lists(st.tuples(NAMES, inner), max_size=2))
                ),
                max_leaves=4,
            ),
        ),
        max_size=3,
    ),
)
ARGUMENTS = OBJECTS | OBJECTS | st.sampled_from(["", " ", "[1]", '{"at": ', '{"at": 1,}', "nonsense", '"{}"'])
CALLS = st.builds(
    ToolCall,
    st.sampled_from(["", "a", "b", "call/1", "x" * 70]),
    st.sampled_from(["look", "ask", "no such"]),
    ARGUMENTS,
)
TEXTS = st.sampled_from(["", "\n", "Let me see.\n", "<think>hm</think>", '{"name": "Ro', '{"final": ""}']) | st.text(
    max_size=8
)
FINALS = st.sampled_from(['{"name": "Roma"}', "Roma", '{"final": {"name": "Roma"}}', '{"final": "Roma"}', "[1]"])
ACTIONS = st.builds(
    lambda before, space, name, given: before + _object(space, [('"tool"', f'"{name}"'), ('"arguments"', given)]),
    st.sampled_from(["", "I look.\n", "```json\n"]),
    SPACES,
    st.sampled_from(["look", "no such"]),
    OBJECTS,
)
CALL_ENDS: st.SearchStrategy[FinishReason] = st.sampled_from(["calls", "calls", "calls", "length"])
TEXT_ENDS: st.SearchStrategy[FinishReason] = st.sampled_from(["stop", "stop", "stop", "length"])


def _replies(mode: ToolMode) -> st.SearchStrategy[Reply]:
    """Calls more often than not, so that lives are long."""
    thought = st.lists(thoughts, max_size=2).map(tuple)
    spent = st.just(Usage())
    if mode == "native":
        several = st.lists(CALLS, min_size=1, max_size=3).map(tuple)
        calling = st.builds(Reply, TEXTS, CALL_ENDS, spent, several, thought)
    else:
        calling = st.builds(Reply, ACTIONS, TEXT_ENDS, spent, thoughts=thought)
    answering = st.builds(Reply, TEXTS | FINALS, TEXT_ENDS, spent, thoughts=thought)
    return calling | calling | calling | answering


MODES: tuple[ToolMode, ...] = ("native", "action")
REPLIES = {mode: _replies(mode) for mode in MODES}
RESULTS = st.tuples(any_text, st.booleans())
WHOLE_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
"""A system prompt with half of a surrogate pair is refused."""
OPTIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "output": st.sampled_from([None, City, list[int]]),
        "task": st.sampled_from(["Do {it}!", LONG + "{it}"]),
        "system_prompt": st.sampled_from([None, "Be brief."]) | WHOLE_TEXT,
        "cache_salt": st.sampled_from([None, "salt"]),
        "max_turns": st.integers(1, 5),
        "max_retries": st.integers(0, 3),
        "streaming": st.booleans(),
        "priority": st.sampled_from([0, 3]),
        "max_tokens": st.sampled_from([None, 9]),
    }
)


@dataclass(frozen=True)
class Turn:
    request: Request
    asks_again: bool
    reply: Reply
    """What the model said to this request."""


@st.composite
def lives(draw: st.DrawFn, wire: Wire, mode: ToolMode | None = None) -> list[Turn]:
    """The turns of one agent, to its end."""
    chosen = draw(st.sampled_from(wire.modes)) if mode is None else mode
    made = _plan(wire, tool_mode=chosen, **draw(OPTIONS))
    talk = Conversation(made.config, made.job(0, {"it": draw(any_text)}))
    turns: list[Turn] = []
    was_told = True
    while not isinstance(step := talk.next(), Done):
        match step:
            case Generate(request):
                turns.append(Turn(request, not was_told, draw(REPLIES[chosen])))
                talk.apply(Replied(turns[-1].reply))
                was_told = False
            case CallTools(calls):
                talk.apply(Returned(tuple(ToolResult(call, *draw(RESULTS)) for call in calls)))
                was_told = True
            case _:
                raise AssertionError(f"A life in which nothing is compacted has no {step}")
    return turns


def _plan(wire: Wire, output: Any = None, task: str = "Do {it}!", **options: Any) -> Plan:
    return plan(TOOLS, output, wire.traits, task, **options)


@dataclass(frozen=True)
class Reading:
    """What the model reads of a request, as it stands in the body."""

    tools: str
    system: str
    messages: tuple[str, ...]

    def up_to(self, messages: int) -> bytes:
        """Its bytes, without what closes the list of messages."""
        return (self.tools + self.system + "[" + ",".join(self.messages[:messages])).encode()

    @property
    def whole(self) -> bytes:
        return self.up_to(len(self.messages))


def _read(wire: Wire, body: bytes) -> Reading:
    parts = _members(body.decode())
    tools, system = parts.get("tools", ""), parts.get("system", "")
    if wire.flavor.dialect == "bedrock" and "toolConfig" in parts:
        tools = _members(parts["toolConfig"])["tools"]
    return Reading(MARKS.sub("", tools), MARKS.sub("", system), _items(MARKS.sub("", parts["messages"])))


def _members(text: str) -> dict[str, str]:
    """The members of a JSON object, each as it is written."""
    found: dict[str, str] = {}
    at = 1
    while text[at - 1] != "}" and text[at] != "}":
        name, colon = _DECODER.raw_decode(text, at)
        end = _end(text, colon + 1)
        assert name not in found, f"{name!r} is said twice"
        found[name] = text[colon + 1 : end]
        at = end + 1
    return found


def _items(text: str) -> tuple[str, ...]:
    """The items of a JSON array, each as it is written."""
    found: list[str] = []
    at = 1
    while text[at - 1] != "]" and text[at] != "]":
        end = _end(text, at)
        found.append(text[at:end])
        at = end + 1
    return tuple(found)


_DECODER = json.JSONDecoder()


def _end(text: str, start: int) -> int:
    end: int = _DECODER.raw_decode(text, start)[1]
    assert text[end] in ",]}", "whitespace between the parts of a body is not expected"
    return end


@pytest.mark.slow
@on_every_wire
@settings(max_examples=15)
@given(data=st.data())
def test_the_prompt_of_a_turn_begins_with_the_prompt_of_the_turn_before(wire: Wire, data: st.DataObject) -> None:
    dialect = wire.dialect()
    turns = data.draw(lives(wire))
    readings = [_read(wire, dialect.encode(turn.request)) for turn in turns]
    for (one, next_one), (before, after) in zip(pairwise(turns), pairwise(readings), strict=True):
        kept = len(before.messages)
        if one.asks_again and next_one.asks_again:
            # The one exception: asking again replaces the last such question, with the answer that it was about.
            kept -= 2
            assert len(after.messages) == len(before.messages)
        else:
            assert len(after.messages) > len(before.messages)
        assert after.whole.startswith(before.up_to(kept))


@pytest.mark.slow
@on_every_wire_with_calls
@settings(max_examples=15)
@given(data=st.data())
def test_tools_are_the_same_bytes_in_every_turn_and_the_last_turn_forbids_them(wire: Wire, data: st.DataObject) -> None:
    dialect = wire.dialect()
    turns = data.draw(lives(wire, "native"))
    bodies = [dialect.encode(turn.request) for turn in turns]
    [tools] = {_read(wire, body).tools for body in bodies}
    assert re.findall(r'"name":"(\w+)"', tools) == [tool.name for tool in TOOLS]
    for turn, body in zip(turns, bodies, strict=True):
        choice = orjson.loads(body).get("tool_choice")
        assert (choice is not None) == (not turn.request.may_call_tools and _can_forbid(wire, turn.request))
        assert choice in (None, "none", {"type": "none"})


def _can_forbid(wire: Wire, request: Request) -> bool:
    """Whether the request says that no tool may be called. Bedrock has no word for it. Where the word itself takes the
    tools out of the prompt, a schema rules calls out in its place, if there is one."""
    if wire.flavor.extensions.none_drops_tools and wire.flavor.dialect == "openai":
        return request.answer_schema is None
    return wire.flavor.dialect != "bedrock"


@pytest.mark.slow
@on_every_wire
@settings(max_examples=12)
@given(data=st.data())
def test_cache_routing_fields_and_headers_are_the_same_in_every_turn(wire: Wire, data: st.DataObject) -> None:
    dialect = wire.dialect()
    turns = data.draw(lives(wire))
    bodies = [_members(dialect.encode(turn.request).decode()) for turn in turns]
    assert len({tuple(body.get(name) for name in PLACE) for body in bodies}) == 1
    assert len({str(dialect.headers(turn.request)) for turn in turns}) == 1


@pytest.mark.slow
@on_every_wire_with_calls
@settings(max_examples=15)
@given(data=st.data())
def test_arguments_of_the_model_are_sent_back_byte_for_byte(wire: Wire, data: st.DataObject) -> None:
    dialect = wire.dialect()
    turns = data.draw(lives(wire, "native"))
    made = [_shown(call, turn.reply) for turn in turns[:-1] for call in turn.reply.calls]
    sent = _read(wire, dialect.encode(turns[-1].request)).messages
    assert [arguments for message in sent for arguments in _arguments(message)] == made


def _shown(call: ToolCall, reply: Reply) -> str:
    """The call's arguments as the history must show them: byte for byte, unless no server could parse them."""
    empty = "" if reply.finish == "length" else "{}"
    told = call.arguments if call.arguments.strip() else empty
    try:
        if isinstance(orjson.loads(told), dict):
            return told
    except orjson.JSONDecodeError:
        pass
    return orjson.dumps({"malformed": told}).decode()


def _arguments(message: str) -> Iterator[str]:
    """The arguments of the calls in a message, as they are written there."""
    parts = _members(message)
    for call in _items(parts.get("tool_calls", "[]")):
        yield json.loads(_members(_members(call)["function"])["arguments"])
    if parts["role"] == '"assistant"' and parts["content"].startswith("["):
        for block in map(_members, _items(parts["content"])):
            use = _members(block["toolUse"]) if "toolUse" in block else block
            if "input" in use:
                yield use["input"]


@pytest.mark.slow
@on_every_wire
@settings(max_examples=15)
@given(data=st.data())
def test_agents_of_a_run_share_the_encoded_prompt_and_the_start_of_their_task(wire: Wire, data: st.DataObject) -> None:
    said = st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"]), max_size=8)
    start = f"Read this: {data.draw(said)}{data.draw(st.sampled_from(['', LONG]))}"
    options: dict[str, Any] = {
        "output": data.draw(st.sampled_from([None, City])),
        "task": start + "{it}",
        "system_prompt": data.draw(WHOLE_TEXT),
        "tool_mode": data.draw(st.sampled_from(wire.modes)),
    }
    run, dialect = _plan(wire, **options), wire.dialect()
    own = any_text.filter(str.strip)  # a task that ends in nothing may be one block of text where others are two

    def first_turn(of: Plan, number: int, encoder: Dialect) -> bytes:
        step = Conversation(of.config, of.job(number, {"it": data.draw(own)})).next()
        assert isinstance(step, Generate)
        return _read(wire, encoder.encode(step.request)).whole

    one = first_turn(run, 1, dialect)
    shown = orjson.dumps(start)[1:-1]
    shared = one[: one.index(shown) + len(shown)]
    assert first_turn(run, 2, dialect).startswith(shared)
    # So do those of the same run started again, by a process that has serialised nothing yet.
    assert first_turn(_plan(wire, **options), 3, wire.dialect()).startswith(shared)
