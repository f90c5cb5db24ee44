"""The chat template is found by what it does to a marker, and not used where it does more than to stand around it."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.support.loopback_servers import Line, RawRequest, RawServer, raw_server
from yarl import URL

from batch_agent.backends.http.client import ServerClient
from batch_agent.backends.http.transport_selection import open_transport
from batch_agent.pools.prompt_transport import ChatTemplate, find_chat_template, has_batch_route

Template = Callable[[str], str]
_TOKENS = re.compile(r"<[^<>]*>|\w+|\s+|.", re.DOTALL)


@asynccontextmanager
async def showing(template: Template, begins: str = "") -> AsyncIterator[ServerClient]:
    """A server with this template. `begins`: what it puts before a text unless it is told not to."""
    words: list[str] = []

    def ids(text: str) -> list[int]:
        found = _TOKENS.findall(text)
        words.extend(word for word in found if word not in words)
        return [words.index(word) for word in found]

    async def answer(request: RawRequest, line: Line) -> None:
        body = orjson.loads(request.body)
        if request.path == "/detokenize":
            reply: Any = {"prompt": "".join(words[each] for each in body["tokens"])}
        elif "messages" in body:
            reply = {"tokens": ids(template(body["messages"][0]["content"]))}
        else:
            reply = {"tokens": ids((begins if body.get("add_special_tokens", True) else "") + body["prompt"])}
        await line.reply(200, orjson.dumps(reply), "content-type: application/json\r\n")

    async with raw_server(answer) as server, _server(server) as found:
        yield found


@asynccontextmanager
async def _server(server: RawServer) -> AsyncIterator[ServerClient]:
    root = URL(server.url) / "v1"
    found = ServerClient(open_transport(root, {}), root)
    try:
        yield found
    finally:
        await found.aclose()


async def test_the_text_around_a_message_is_found() -> None:
    async with showing(lambda text: f"<bos><user>{text}<end><model>", begins="<bos>") as server:
        assert await find_chat_template(server, "m") == ChatTemplate("<bos><user>", "<end><model>")


async def test_a_template_that_strips_whitespace_is_reproduced() -> None:
    async with showing(lambda text: f"<user>{text.strip()}<end>") as server:
        found = await find_chat_template(server, "m")
    assert found is not None
    assert found.render("  hello \n") == "<user>hello<end>"


async def test_a_template_that_does_not_strip_keeps_whitespace() -> None:
    async with showing(lambda text: f"<user>\n{text}\n<end>") as server:
        found = await find_chat_template(server, "m")
    assert found is not None
    assert found.render("  hello \n") == "<user>\n  hello \n\n<end>"


@pytest.mark.parametrize(
    "template",
    [
        lambda text: f"<user>{text}<end>{text}",
        lambda text: f"<user>{text.upper()}<end>",
        lambda text: f"<user {len(text)}>{text}<end>",
        lambda text: f"<user>{text.lstrip()}<end>",
        lambda text: "<user>",
    ],
)
async def test_a_template_that_does_more_is_applied_by_the_server(template: Template) -> None:
    async with showing(template) as server:
        assert await find_chat_template(server, "m") is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"{}"),
        (500, b""),
        (200, b"no json"),
        (200, b"[]"),
        (200, b'{"tokens": []}'),
        (200, b'{"tokens": "many"}'),
        (200, b'{"tokens": [1], "prompt": 7}'),
        (302, b""),
    ],
)
async def test_a_server_without_a_usable_template_causes_no_error(status: int, body: bytes) -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        await line.reply(status, body)

    async with raw_server(answer) as raw, _server(raw) as server:
        assert await find_chat_template(server, "m") is None
        assert not await has_batch_route(server)


async def test_an_unreachable_server_causes_no_error() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        line.reset()

    async with raw_server(answer) as raw, _server(raw) as server:
        assert await find_chat_template(server, "m") is None
        assert not await has_batch_route(server)
