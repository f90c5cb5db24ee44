"""Answers that are JSON of a shape nobody expects, in every dialect: put right, or an error of that one request."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.loopback_servers import Line, RawRequest, raw_server

from batch_agent import BackendError, BatchAgent, ErrorKind, Tool
from batch_agent.backends.dialects.anthropic import decoder as anthropic_answers
from batch_agent.backends.dialects.bedrock import decoder as bedrock_answers
from batch_agent.backends.dialects.completions import decoder as completions_answers
from batch_agent.backends.dialects.openai import decoder as openai_answers
from batch_agent.backends.http.json_body import BadJson, loads
from batch_agent.backends.http_errors import translate_status
from batch_agent.backends.load_metrics import sglang_loads
from batch_agent.core.requests import TextDelta

Read = Callable[[bytes], Any]
OPENAI = openai_answers.decode_reply
ANTHROPIC = anthropic_answers.decode_reply
BEDROCK = bedrock_answers.decode_reply


def completions(body: bytes) -> Any:
    return completions_answers.decode_batch_reply(body, 1)


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


SAID: dict[Read, str] = {
    OPENAI: '{"choices":[{"message":{"content":HERE},"finish_reason":"stop"}]}',
    ANTHROPIC: '{"content":[{"type":"text","text":HERE}],"stop_reason":"end_turn"}',
    BEDROCK: '{"output":{"message":{"content":[{"text":HERE}]}},"stopReason":"end_turn"}',
    completions: '{"choices":[{"text":HERE,"index":0,"finish_reason":"stop"}]}',
}
PLACES: list[tuple[Read, str]] = [
    *SAID.items(),
    (OPENAI, '{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":HERE}}]}}]}'),
    (OPENAI, '{"choices":[{"message":{"tool_calls":[{"id":HERE,"index":HERE,"function":{"name":HERE}}]}}]}'),
    (OPENAI, '{"choices":[{"message":{"tool_calls":HERE}}]}'),
    (OPENAI, '{"choices":[{"message":{"content":"x"},"finish_reason":HERE}]}'),
    (OPENAI, '{"choices":HERE}'),
    (OPENAI, '{"error":HERE}'),
    (OPENAI, '{"error":{"message":HERE,"code":HERE}}'),
    (OPENAI, "HERE"),
    (ANTHROPIC, '{"content":[{"type":"tool_use","name":"f","input":HERE}],"stop_reason":"tool_use"}'),
    (ANTHROPIC, '{"content":[{"type":HERE,"name":HERE,"id":HERE}],"stop_reason":HERE}'),
    (ANTHROPIC, '{"content":HERE,"stop_reason":HERE}'),
    (ANTHROPIC, '{"type":"error","error":HERE}'),
    (BEDROCK, '{"output":{"message":{"content":[{"toolUse":{"name":"f","input":HERE}}]}}}'),
    (BEDROCK, '{"output":{"message":{"content":[{"reasoningContent":HERE}]}},"stopReason":HERE}'),
    (completions, '{"choices":[{"text":"x","index":HERE,"finish_reason":HERE}]}'),
    (completions, '{"error":HERE}'),
]
VALUES = {
    "deep": nested(250),
    "deeper": nested(1010),
    "deepest": nested(100_000),
    "a deep list": "[" * 1000 + "]" * 1000,
    "deep texts": '[{"text":' * 490 + '"x"' + "}]" * 490,
    "a large number": "9" * 30,
    "a huge number": "9" * 5000,
    "an infinite number": "1e999",
    "NaN": "NaN",
    "infinity": "-Infinity",
    "half a character": r'"a\ud800b"',
    "the same key twice": '{"a": 1, "a": 2}',
    "NUL": r'"a\u0000b"',
    "negative": "-1",
    "null": "null",
    "true": "true",
    "an object": "{}",
    "a list": "[]",
    "a list of all": '[null, true, 1, "a", [], {}]',
}


@pytest.mark.parametrize(("read", "place"), PLACES, ids=[place for _, place in PLACES])
def test_an_answer_of_any_json_shape_is_decoded_or_is_a_backend_error(read: Read, place: str) -> None:
    for value in VALUES.values():
        with contextlib.suppress(BackendError):
            read(place.replace("HERE", value).encode())


@pytest.mark.parametrize("place", ["HERE", '{"error":HERE}', '{"detail":HERE}', '{"message":HERE}'])
def test_an_error_body_of_any_json_shape_is_a_backend_error(place: str) -> None:
    for value in VALUES.values():
        error = translate_status(400, {}, place.replace("HERE", value).encode(), "http://host")
        assert (error.kind, len(str(error)) < 2000) == (ErrorKind.BAD_REQUEST, True)


@pytest.mark.parametrize("place", ["HERE", '{"loads":[{"num_running_reqs":HERE,"decode_moments":[0,0,0,0,0,HERE]}]}'])
def test_load_pages_of_any_shape_raise_nothing(place: str) -> None:
    for value in VALUES.values():
        sglang_loads(place.replace("HERE", value).encode())


@pytest.mark.parametrize("read", SAID)
def test_lone_surrogates_byte_order_marks_and_nan_are_tolerated(read: Read) -> None:
    plain = read(SAID[read].replace("HERE", '"a�b"').encode())
    assert "a�b" in str(plain)
    assert read(b"\xef\xbb\xbf" + SAID[read].replace("HERE", '"a�b"').encode()) == plain
    assert read(SAID[read].replace("HERE", r'"a\ud800b"').encode()) == plain
    assert read(SAID[read].replace("HERE", r'"a\udfffb","logprobs":NaN').encode()) == plain


def test_surrogate_pairs_and_large_numbers_are_unchanged() -> None:
    assert loads(rb'{"a": "\ud83d\ude00 \ud83d", "b": 12345678901234567, "c": 1.5}') == {
        "a": "\U0001f600 �",
        "b": 12345678901234567,
        "c": 1.5,
    }


@pytest.mark.parametrize(
    "data", [b"", b"\xef\xbb\xbf", b'{"a": "\xff"}', b'{"a": 1', b"<html>", b'{"a": 1}{"a": 2}', b"\0"]
)
def test_invalid_json_is_rejected(data: bytes) -> None:
    with pytest.raises(BadJson):
        loads(data)


def test_a_lone_surrogate_in_a_stream_changes_no_other_character() -> None:
    decoder = openai_answers.OpenAIStreamDecoder()
    pieces = ['{"choices":[{"delta":{"content":"' + text + '"}}]}' for text in ("a", "b", r"\ud800", "c")]
    stream = "".join(f"data: {piece}\n\n" for piece in pieces).encode()
    text = [delta.text for delta in decoder.feed(stream) if isinstance(delta, TextDelta)]
    assert "".join(text) == "ab�c"


def called(*calls: tuple[str, str]) -> dict[str, Any]:
    made = [{"id": f"c{at}", "function": {"name": name, "arguments": said}} for at, (name, said) in enumerate(calls)]
    return {"message": {"content": None, "tool_calls": made}, "finish_reason": "tool_calls"}


def said(text: str) -> dict[str, Any]:
    return {"message": {"content": text}, "finish_reason": "stop"}


CALLS: dict[str, dict[str, Any]] = {
    "a name with control characters": called(("lo\x1b[2Jok\0\n", "{}")),
    "a long name": called(("l" * 100_000, "{}")),
    "half a character as arguments": called(("look", r'{"x": "a\ud800b"}')),
    "half a character": called(("look", '{"x": "a\ud800b"}'), ("lo\ud800ok", "{}")),
    "deep arguments": called(("look", f'{{"x": {nested(900)}}}')),
    "deepest arguments": called(("look", f'{{"x": {nested(100_000)}}}')),
    "a huge number": called(("look", '{"x": %s}' % ("9" * 5000))),
    "NaN": called(("look", '{"x": NaN}')),
    "ten megabytes": called(("look", json.dumps({"x": "y" * 10_000_000}))),
    "ten megabytes of brackets": called(("look", '{"x": ' + "[" * 10_000_000)),
    "many calls": called(*[("look", f'{{"x": "{number}"}}') for number in range(500)]),
}


@pytest.mark.slow
async def test_tool_calls_of_any_shape_fail_no_agent(tmp_path: Path) -> None:
    """Agents that are answered with them go on, are kept, written and shown."""

    async def answer(request: RawRequest, line: Line) -> None:
        if request.method == "GET":
            await line.reply(200, b'{"data": [{"id": "m"}]}')
            return
        asked = json.loads(request.body.decode(errors="replace"))
        first = asked["messages"][0]["content"]
        choice = said("done") if len(asked["messages"]) > 1 else CALLS.get(first, said("I take tools."))
        body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()
        await line.reply(200, body, "content-type: application/json\r\n")

    @Tool.define
    def look(x: str) -> str:
        """Looks.

        Args:
            x: What at.
        """
        return f"seen {x[:50]}"

    async with raw_server(answer) as server, asyncio.timeout(120):
        options: dict[str, Any] = {"backend": f"{server.url}/v1", "tools": [look], "checkpoint_dir": tmp_path / "run"}
        results = await BatchAgent.run(
            task="{it}", inputs=list(CALLS), out=tmp_path / "out.jsonl", progress=False, **options
        )
        assert {result.input: result.output for result in results} == dict.fromkeys(CALLS, "done")
        again = await BatchAgent.run(task="{it}", inputs=list(CALLS), progress=False, **options)
        assert [result.output for result in again] == ["done"] * len(CALLS)
    assert len([orjson.loads(row) for row in (tmp_path / "out.jsonl").read_bytes().splitlines()]) == len(CALLS)


async def test_answers_of_any_json_shape_fail_their_agent_or_are_written(tmp_path: Path) -> None:
    answers = {
        "empty": b'{"choices":[]}',
        "number": orjson.dumps({"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]}),
        "deep": SAID[OPENAI].replace("HERE", f'"x","odd":{nested(900)}').encode(),
        "half": rb'{"choices":[{"message":{"content":"a\ud800b"},"finish_reason":"stop"}]}',
        "nul": rb'{"choices":[{"message":{"content":"a\u0000b"},"finish_reason":"stop"}]}',
        "marked": b'\xef\xbb\xbf{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}]}',
    }

    async def answer(request: RawRequest, line: Line) -> None:
        if request.method == "GET":
            await line.reply(200, b'\xef\xbb\xbf{"data": [{"id": "m"}]}')
        else:
            body = answers[orjson.loads(request.body)["messages"][0]["content"]]
            await line.reply(200, body, "content-type: application/json\r\n")

    async with raw_server(answer) as server, asyncio.timeout(60):
        results = await BatchAgent.run(
            task="{it}",
            inputs=list(answers),
            backend=f"{server.url}/v1",
            max_retries=0,
            checkpoint_dir=tmp_path / "run",
            out=tmp_path / "out.jsonl",
            progress=False,
        )
    kinds = {result.input: result.error.kind if result.error else result.output for result in results}
    assert kinds == {
        "empty": ErrorKind.SERVER,
        "number": ErrorKind.INVALID_OUTPUT,
        "deep": ErrorKind.SERVER,
        "half": "a�b",
        "nul": "a\0b",
        "marked": "ok",
    }
    rows = [orjson.loads(row) for row in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert {row["input"]: row["output"] for row in rows if row["ok"]} == {"half": "a�b", "nul": "a\0b", "marked": "ok"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'{{"mood": "x", "more": {nested(900)}}}', "nested more than 200 levels deep"),
        (r'{"mood": "a\ud800b"}', "half of a character"),
        (r'{"mood": "x", "a\ud800b": 1}', "half of a character"),
    ],
)
async def test_an_answer_that_fits_its_schema_but_is_not_serializable_is_invalid(
    text: str, words: str, tmp_path: Path
) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if request.method == "GET":
            await line.reply(200, b'{"data": [{"id": "m"}]}')
        else:
            await line.say(text)

    schema = {"type": "object", "properties": {"mood": {"type": "string"}}, "required": ["mood"]}
    async with raw_server(answer) as server, asyncio.timeout(60):
        [result] = await BatchAgent.run(
            task="{it}",
            inputs=["a"],
            output_schema=schema,
            backend=f"{server.url}/v1",
            out=tmp_path / "out.jsonl",
            progress=False,
        )
    assert result.error is not None
    assert (result.error.kind, words in result.error.message) == (ErrorKind.INVALID_OUTPUT, True)
