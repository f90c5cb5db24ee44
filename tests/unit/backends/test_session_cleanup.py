"""Closing of the sessions that servers keep for each agent."""

import asyncio
from contextlib import aclosing
from typing import Any

import orjson
from tests.support.loopback_servers import Line, RawRequest, RawServer, raw_server, server_at
from yarl import URL

from batch_agent import BatchAgent
from batch_agent.backends.session_cleanup import SessionCloser, close_session

INFO: dict[str, Any] = {
    "version": "0.5.23",
    "enable_session_radix_cache": True,
    "enable_priority_scheduling": True,
    "disable_radix_cache": False,
    "max_total_num_tokens": 8192,
}


def sglang(info: dict[str, Any]) -> Any:
    async def answer(request: RawRequest, line: Line) -> None:
        match request.path:
            case "/v1/models":
                await line.reply(200, orjson.dumps({"data": [{"id": "m", "owned_by": "sglang"}]}))
            case "/server_info":
                await line.reply(200, orjson.dumps(info))
            case "/v1/chat/completions":
                await line.say("fine")
            case "/close_session":
                await line.reply(200, b"")
            case _:
                await line.reply(404, b"")

    return answer


def bodies(server: RawServer, path: str) -> list[Any]:
    return [orjson.loads(request.body) for request in server.requests if request.path == path]


async def test_each_agents_session_is_closed_when_it_is_done() -> None:
    async with raw_server(sglang(INFO)) as server:
        results = await BatchAgent.run(task="{it}", inputs=["a", "b", "c"], backend=server.url)
        keys = sorted(result.key for result in results)
        assert sorted(body["session_id"] for body in bodies(server, "/v1/chat/completions")) == keys
        assert sorted(body["session_id"] for body in bodies(server, "/close_session")) == keys


async def test_sessions_are_not_used_if_the_server_has_none() -> None:
    async with raw_server(sglang(INFO | {"enable_session_radix_cache": False})) as server:
        await BatchAgent.run(task="{it}", inputs=["a"], backend=server.url)
        assert "session_id" not in bodies(server, "/v1/chat/completions")[0]
        assert not bodies(server, "/close_session")


async def priority_sent(info: dict[str, Any], **options: Any) -> int | None:
    async with raw_server(sglang(INFO | info)) as server:
        await BatchAgent.run(task="{it}", inputs=["a"], backend=server.url, **options)
        priority: int | None = bodies(server, "/v1/chat/completions")[0].get("priority")
        return priority


async def test_sglang_is_sent_a_priority_only_if_it_serves_or_evicts_by_it() -> None:
    assert await priority_sent({}, priority=3) == 300
    assert await priority_sent({"enable_priority_scheduling": False}, priority=3) is None
    evicting = {"enable_priority_scheduling": False, "radix_eviction_policy": "priority"}
    assert await priority_sent(evicting, priority=3) == 300
    assert await priority_sent(evicting | {"abort_on_priority_when_disabled": True}, priority=3) is None


async def test_an_sglang_that_serves_low_priorities_first_gets_them_inverted() -> None:
    low_first = {"schedule_low_priority_values_first": True}
    assert await priority_sent(low_first, priority=3) == -300
    assert await priority_sent(low_first) == 0


async def test_where_sglang_evicts_by_priority_agents_outlive_requests_without_one() -> None:
    evicting = {"radix_eviction_policy": "priority", "enable_session_radix_cache": False}
    assert await priority_sent(evicting) == 1
    assert await priority_sent(evicting, priority=3) == 301


async def test_dynamo_gets_a_final_request_if_the_url_enables_it() -> None:
    async with raw_server(sglang(INFO)) as server:
        url = server.url.replace("http", "dynamo") + "?sessions=end"
        [result] = await BatchAgent.run(task="{it}", inputs=["a"], backend=url)
        turn, last = (request for request in server.requests if request.path == "/v1/chat/completions")
        assert turn.headers["x-dynamo-session-id"] == last.headers["x-dynamo-session-id"] == result.key
        assert "x-dynamo-session-final" not in turn.headers
        assert last.headers["x-dynamo-session-final"] == "true"
        assert orjson.loads(last.body)["max_tokens"] == 1


async def test_a_run_that_ends_early_closes_the_open_sessions() -> None:
    answered = asyncio.Event()

    async def answer(request: RawRequest, line: Line) -> None:
        if request.path == "/v1/chat/completions":
            answered.set()
            await line.gone()
        else:
            await sglang(INFO)(request, line)

    async with raw_server(answer) as server:
        running = asyncio.create_task(BatchAgent.run(task="{it}", inputs=["a"], backend=server.url))
        await answered.wait()
        running.cancel()
        await asyncio.wait([running])
        assert len(bodies(server, "/close_session")) == 1


async def test_a_server_that_does_not_respond_to_a_close_request_stops_no_run() -> None:
    async def answer(request: RawRequest, line: Line) -> None:
        if request.path == "/close_session":
            line.reset()
        else:
            await sglang(INFO)(request, line)

    async with raw_server(answer) as server:
        [result] = await BatchAgent.run(task="{it}", inputs=["a"], backend=server.url)
        assert result.ok


async def test_a_session_is_closed_once_and_only_if_it_was_registered() -> None:
    async with raw_server(sglang(INFO)) as server:
        async with aclosing(server_at(server.url)) as found:
            closer = SessionCloser(found.post_or_none, close_session(URL(server.url) / "close_session"))
            closer.register("a")
            closer.register("")
            for agent in ("a", "a", "b"):
                await closer.close(agent)
            await closer.close_all()
        assert bodies(server, "/close_session") == [{"session_id": "a"}]
