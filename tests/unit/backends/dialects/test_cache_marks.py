"""Marks for managed caches where the own part of a task begins: few, in their place, and nothing else changes."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.backends.dialects.anthropic.encoder import AnthropicMessages
from batch_agent.backends.dialects.bedrock.encoder import BedrockConverse
from batch_agent.backends.dialects.dialect import Dialect, TextBlock, cache_blocks
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.core.messages import Assistant, Message, Prompt, ToolCall, ToolResult, ToolResults, ToolSpec, User
from batch_agent.core.requests import Request, Sampling
from batch_agent.core.task_fields import Fields
from batch_agent.plan.layout import compute_layout
from batch_agent.plan.template import template_of

CLAUDE, NOVA, OTHER = "eu.anthropic.claude-opus-4-6-v1", "amazon.nova-pro-v1:0", "meta.llama3"
LOOK = ToolSpec("look", "Look something up.", {"type": "object", "properties": {"q": {"type": "string"}}})
CALL = ToolCall("c1", "look", "{}")
LONG = "What all of them have to know. " * 50
ROUND = (Assistant("", (CALL,)), ToolResults((ToolResult(CALL, "found"),)))

texts = st.builds(
    lambda parts, times: "".join(parts) * times,
    st.lists(st.sampled_from(["word ", " ", "\n", "é😀", "\t", '"{}"']), max_size=4),
    st.integers(1, 800),
)
tools = st.sampled_from([(), (LOOK,)])
systems = st.sampled_from(["", "  ", "Be brief."])


def dialect(model: str) -> Dialect:
    return AnthropicMessages(strict_schema=True) if model == "anthropic" else BedrockConverse()


models = st.sampled_from(["anthropic", CLAUDE, NOVA, OTHER])


def request(model: str, messages: tuple[Message, ...], system: str = "", tools: tuple[ToolSpec, ...] = ()) -> Request:
    return Request(Prompt(system, tools), messages, model, Sampling())


def sent(asked: Request) -> Any:
    return orjson.loads(dialect(asked.model).encode(asked))


def marks(body: Any) -> int:
    """Of a whole request, wherever they are."""
    if isinstance(body, dict):
        here = ("cachePoint" in body) + ("cache_control" in body)
        return here + sum(map(marks, body.values()))
    return sum(map(marks, body)) if isinstance(body, list) else 0


def said_texts(body: Any) -> Iterator[str]:
    """What the user says, block by block."""
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"text": content}] if isinstance(content, str) else content
        if message["role"] == "user":
            yield from (block["text"] for block in blocks if "text" in block)


def text_blocks(message: User) -> list[TextBlock]:
    """All blocks of a message without images."""
    blocks = cache_blocks(message)
    assert all(isinstance(block, TextBlock) for block in blocks)
    return [block for block in blocks if isinstance(block, TextBlock)]


@given(texts, st.integers(-1, 5000))
def test_the_two_halves_of_a_split_text_add_up_and_are_never_blank(text: str, shared: int) -> None:
    blocks = text_blocks(User(text, shared))
    assert "".join(block.text for block in blocks) == text
    if len(blocks) > 1:
        assert len(blocks[0].text) == shared >= 1024
        assert [block.is_marked for block in blocks] == [True, False]
        assert all(block.text.strip() for block in blocks)


def test_each_reference_is_a_block_and_marks_are_behind_the_lead_and_the_last_of_them() -> None:
    lead, references, own = LONG, ["<reference A>" * 100, "<reference B>" * 100], "Question: why?"
    text = lead + "".join(references) + own
    breaks = (len(lead), len(lead) + len(references[0]))
    blocks = text_blocks(User(text, len(text) - len(own), breaks))
    assert [block.text for block in blocks] == [lead, *references, own]
    assert [block.is_marked for block in blocks] == [True, False, True, False]


@given(models, st.integers(0, 6), st.integers(0, 5), systems)
def test_references_leave_four_marks_at_most(model: str, rounds: int, references: int, system: str) -> None:
    parts = [LONG, *(f"<reference {at}>" * 100 for at in range(references))]
    breaks = [sum(map(len, parts[: at + 1])) for at in range(len(parts))]
    story = (User("".join(parts) + "Why?", breaks[-1], tuple(breaks[:-1])), *ROUND * rounds)
    assert marks(sent(request(model, story, system, (LOOK,)))) <= 4


@given(models, texts, st.integers(0, 5000), systems, tools, st.integers(0, 6))
def test_there_are_four_marks_at_most_and_the_content_is_the_same(
    model: str, text: str, shared: int, system: str, tools: tuple[ToolSpec, ...], rounds: int
) -> None:
    story = (User(text, shared), *(ROUND * rounds if tools else ()))
    marked = sent(request(model, story, system, tools))
    plain = sent(request(model, (User(text), *story[1:]), system, tools))
    assert marks(marked) <= 4
    assert marks(plain) <= 4
    shown = list(said_texts(marked))
    assert "".join(shown) == "".join(said_texts(plain))
    assert all(each.strip() for each in shown) or model == "anthropic"
    if model == OTHER:
        assert marked == plain
        assert marks(marked) == 0


@given(models, st.integers(1024, 1500), systems, tools)
def test_the_bytes_before_a_cache_mark_do_not_depend_on_the_turn(
    model: str, shared: int, system: str, tools: tuple[ToolSpec, ...]
) -> None:
    wire = dialect(model)
    first = request(model, (User(LONG + "own", shared),), system, tools)
    turns = [replace(first, messages=(*first.messages, *ROUND * rounds)) for rounds in range(6)]
    bodies = [orjson.loads(wire.encode(turn)) for turn in turns]
    for body in bodies:
        assert body["messages"][0] == bodies[0]["messages"][0]
        assert (body.get("system"), body.get("tools")) == (bodies[0].get("system"), bodies[0].get("tools"))
        assert body.get("toolConfig") == bodies[0].get("toolConfig")
    for one, other in pairwise(bodies):
        assert other["messages"][: len(one["messages"])] == one["messages"]


def test_the_cache_mark_is_where_the_agents_own_text_begins() -> None:
    story = (User(LONG + "own", len(LONG)),)
    [message] = sent(request("anthropic", story))["messages"]
    assert message["content"] == [
        {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "own"},
    ]
    for model in (CLAUDE, NOVA):
        [message] = sent(request(model, story))["messages"]
        assert message["content"] == [{"text": LONG}, {"cachePoint": {"type": "default"}}, {"text": "own"}]


@pytest.mark.parametrize(
    "said",
    [
        User(LONG + "own", 0),
        User(LONG + "own", 1023),
        User(LONG, len(LONG)),
        User(LONG, len(LONG) + 7),
        User(LONG + " \n", len(LONG)),
        User(" " * 2000 + "own", 2000),
        User("", 0),
    ],
)
@pytest.mark.parametrize("model", ["anthropic", CLAUDE, NOVA])
def test_a_useless_cache_mark_is_not_set(model: str, said: User) -> None:
    assert sent(request(model, (said,))) == sent(request(model, (User(said.text),)))


def test_a_server_without_cache_marks_gets_plain_text() -> None:
    asked = request("m", (User(LONG + "own", len(LONG)),))
    for wire in (AnthropicMessages(), OpenAIChat()):
        assert orjson.loads(wire.encode(asked))["messages"][-1]["content"] == LONG + "own"


def test_cache_control_of_the_user_applies_to_all_cache_marks() -> None:
    lasting = {"type": "ephemeral", "ttl": "1h"}
    asked = Request(
        Prompt("Be brief."), (User(LONG + "own", len(LONG)),), "m", Sampling(extra={"cache_control": lasting})
    )
    body = orjson.loads(AnthropicMessages(strict_schema=True).encode(asked))
    assert body["messages"][0]["content"][0]["cache_control"] == body["system"][0]["cache_control"] == lasting
    assert marks(body) == 3


@pytest.mark.parametrize("model", ["anthropic", CLAUDE, NOVA])
def test_the_bytes_up_to_the_cache_mark_are_equal_within_a_group(model: str) -> None:
    rows = [{"doc": f"{at % 3} {LONG}", "q": f"{at}"} for at in range(9)]
    layout = compute_layout(template_of(Fields("Answer.", "q", "doc")), rows)
    asked = [request(model, (User(*layout.task(at, row)),)) for at, row in enumerate(rows)]
    firsts = [next(said_texts(sent(each))) for each in asked]
    assert all(len(first) > len(LONG) for first in firsts)
    assert len(set(firsts)) == 3


@pytest.mark.parametrize("model", ["anthropic", CLAUDE])
def test_the_prefix_of_all_agents_is_marked_whatever_their_groups_share(model: str) -> None:
    """Where much is the same for all and each group shares a little more, all are marked at the same place."""
    rows = [{"manual": LONG * 4, "doc": f"{at % 3} {LONG}", "q": f"{at}"} for at in range(9)]
    layout = compute_layout(template_of(Fields("Answer.", "q", "doc", "manual")), rows)
    asked = [request(model, (User(*layout.task(at, row)),)) for at, row in enumerate(rows)]
    assert {next(said_texts(sent(each))) for each in asked} == {layout.lead}


@pytest.mark.parametrize("model", ["anthropic", CLAUDE])
def test_a_short_prefix_of_large_groups_does_not_replace_the_mark_of_small_groups(model: str) -> None:
    """Documents, each for several questions, in two categories: it is the document that is worth a mark."""
    rows = [{"category": f"c{at % 2}", "doc": f"{at % 6} {LONG}", "q": f"{at}"} for at in range(18)]
    layout = compute_layout(template_of(Fields("Answer.", "q", "doc", "category")), rows)
    asked = [request(model, (User(*layout.task(at, row)),)) for at, row in enumerate(rows)]
    firsts = [next(said_texts(sent(each))) for each in asked]
    assert len(set(firsts)) == 6
    assert all(firsts.count(first) == 3 for first in firsts)
