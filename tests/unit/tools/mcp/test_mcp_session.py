"""A server over HTTP that was restarted does not know the session any more, and says so in one of many ways. The
session is opened anew, once for all agents, and calls that cannot have reached their tool are made again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.mcp_legacy_http import Answer, Served, over_http

from batch_agent.core.messages import ToolCall
from batch_agent.tools import Tool, ToolExecutor
from batch_agent.tools.mcp import MCP, MCPServerGone, MCPToolError
from batch_agent.tools.mcp.mcp_errors import McpRejection

_JSON = "application/json"
_NO_SESSION = "Bad Request: No valid session ID provided"
_FORGOTTEN = [
    pytest.param(Answer(404), id="specification"),
    pytest.param(
        Answer(400, f'{{"jsonrpc":"2.0","error":{{"code":-32000,"message":"{_NO_SESSION}"}}}}', _JSON), id="typescript"
    ),
    pytest.param(
        Answer(404, '{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}', _JSON),
        id="typescript-transport",
    ),
    pytest.param(
        Answer(
            400,
            '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":3}',
            _JSON,
        ),
        id="typescript-one-transport",
    ),
    pytest.param(Answer(400, _NO_SESSION), id="python-1"),
    pytest.param(Answer(410, "gone"), id="proxy"),
]


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Served, dict[str, Tool]]]:
    """A server, and its tools, of which `echo` is a write."""
    async with over_http() as served:
        async with MCP(served.url, headers={"X-Key": "k"}).open() as tools:
            yield served, {tool.name: tool for tool in tools}
        assert set(served.keys) == {"k"}


@pytest.fixture(autouse=True)
def quick_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batch_agent.tools.mcp.transports._CLOSE_SECONDS", 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("refusal", _FORGOTTEN)
async def test_many_calls_in_a_forgotten_session_are_all_made_in_one_new_one(refusal: Answer) -> None:
    async with opened() as (served, tools):
        served.refusal = refusal
        assert await tools["echo"].function(text="before") == "before"
        served.sessions.clear()
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(tools["echo"].function(text=f"{number}")) for number in range(10)]
        assert [call.result() for call in calls] == [f"{number}" for number in range(10)]
        assert sorted(served.called) == sorted(["before", *map(str, range(10))])
        assert served.initialized == 2
        assert not served.farewell.is_set()  # there is no session to end


@pytest.mark.slow
async def test_a_server_may_be_restarted_any_number_of_times() -> None:
    async with opened() as (served, tools):
        for number in range(6):
            served.sessions.clear()
            assert await tools["echo"].function(text=f"{number}") == f"{number}"


async def test_after_a_refusal_without_a_word_a_read_is_made_again_and_a_write_is_not() -> None:
    async with opened() as (served, tools):
        served.refusal = Answer(400)
        served.sessions.clear()
        with pytest.raises(MCPServerGone, match=r"refused 'echo' \(HTTP 400: no explanation\)"):
            await tools["echo"].function(text="write")
        assert await tools["echo"].function(text="next") == "next"
        served.sessions.clear()
        executor = ToolExecutor(list(tools.values()), timeout=60.0, max_tokens=1000)
        [result] = await executor.session("a").results([ToolCall("c", "whoami", "{}")])
        await executor.aclose()
        assert not result.is_error
        assert served.called == ["next", ""]


async def test_a_tool_that_is_refused_in_a_new_session_too_fails_without_ever_more_sessions() -> None:
    async with opened() as (served, tools):
        served.refused_tools["echo"] = Answer(400, "echo needs a session of its own")
        for _ in range(5):
            with pytest.raises(MCPToolError, match="echo needs a session of its own"):
                await tools["echo"].function(text="x")
        assert served.initialized == 2
        assert await tools["whoami"].function()
        served.sessions.clear()
        assert await tools["whoami"].function()  # another tool finds out that the session is gone
        served.refused_tools.clear()
        assert await tools["echo"].function(text="y") == "y"


@pytest.mark.parametrize("status", [200, 400, 404])
async def test_an_error_of_the_call_itself_opens_no_session(status: int) -> None:
    code = -32601 if status == 404 else -32602
    error = f'{{"jsonrpc":"2.0","error":{{"code":{code},"message":"text is too long"}},"id":null}}'
    async with opened() as (served, tools):
        if status != 200:
            served.refused_tools["broken"] = Answer(status, error, _JSON)
        with pytest.raises(MCPToolError, match=r"^text is too long$"):
            await tools["broken"].function()
        assert served.initialized == 1


@pytest.mark.parametrize(
    ("status", "says"),
    [(503, r"HTTP 503: restarting\); it was not done"), (502, "it may or may not have been done"), (429, "not done")],
)
async def test_a_server_that_is_unavailable_for_now_is_no_failed_tool(status: int, says: str) -> None:
    async with opened() as (served, tools):
        served.refused_tools["echo"] = Answer(status, "restarting")
        with pytest.raises(MCPServerGone, match=says):
            await tools["echo"].function(text="x")
        served.refused_tools.clear()
        assert await tools["echo"].function(text="y") == "y"
        assert served.initialized == 1


async def test_a_call_that_is_under_way_is_not_cut_off_by_a_new_session() -> None:
    """Its server may be one of several behind one address."""
    async with opened() as (served, tools):
        release = served.hold("echo")
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(tools["echo"].function(text="slow"))
            await served.held.wait()
            served.sessions.clear()
            assert await tools["whoami"].function()
            assert served.initialized == 2
            release.set()
        assert slow.result() == "slow"


def test_a_servers_own_data_is_no_refusal() -> None:
    known = McpRejection("x", is_of_session=True, is_certain=False)
    assert McpRejection.from_data(known.as_data()) == known
    odd: list[object] = [None, [], {}, {"batch_agent_rejection": {"odd": 1}}, {"batch_agent_rejection": None}]
    for data in odd:
        assert McpRejection.from_data(data) is None


_LONG = '{"jsonrpc": "2.0", "id": 2, "result": {"content": [{"type": "text", "text": "%s"}]}}' % ("x" * 200_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "content_type", "says"),
    [
        (_LONG, _JSON, "larger than 100,000 bytes"),
        (f"data: {_LONG}\n\n", "text/event-stream", "exceeded the 100000 byte limit"),
        (f"data: {_LONG}", "text/event-stream", "exceeded the 100000 byte limit"),
    ],
    ids=["json", "event", "half an event"],
)
@pytest.mark.parametrize("is_packed", [True, False])
async def test_a_result_without_an_end_is_not_read_to_it(
    monkeypatch: pytest.MonkeyPatch, body: str, content_type: str, says: str, is_packed: bool
) -> None:
    monkeypatch.setattr("batch_agent.tools.mcp.transports.MAX_MESSAGE_BYTES", 100_000)
    async with opened() as (served, tools):
        served.refused_tools["echo"] = Answer(200, body, content_type, is_packed)
        with pytest.raises(MCPToolError, match=says):
            await tools["echo"].function(text="x")
        del served.refused_tools["echo"]
        assert await tools["echo"].function(text="y" * 1000) == "y" * 1000
        assert served.initialized == 1


async def test_a_refusal_without_an_end_is_not_read_to_it() -> None:
    async with opened() as (served, tools):
        served.refused_tools["echo"] = Answer(503, "x" * 3_000_000, is_packed=True)
        with pytest.raises(MCPServerGone, match="too long to be read"):
            await tools["echo"].function(text="x")
