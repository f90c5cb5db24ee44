"""Slow responses, failures, and clients that disconnect."""

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest
from tests.support.completion_services import (
    BODY,
    CHAT,
    HELLO,
    MESSAGES,
    RESPONSES,
    STREAM_AT_ONCE,
    BlockedService,
    Caller,
    FakeService,
    error_of,
    gateway_client,
)

from batch_agent import BackendError, ErrorKind
from batch_agent.core.requests import Reply
from batch_agent.core.run_failure import RunStopped
from batch_agent.programs.gateway import open_gateway

_SAID = "HTTP 500 from https://me@gpu-7.cluster:8000/v1/chat/completions: see http://9.9.9.9/log."
each = pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
FAILED = {CHAT: b"data: [DONE]\n", MESSAGES: b"event: error\n", RESPONSES: b"event: response.failed\n"}
ENDED = {CHAT: b"data: [DONE]", MESSAGES: b'{"type":"message_stop"}', RESPONSES: b"event: response.completed\n"}


def failing() -> Reply:
    raise BackendError(ErrorKind.SERVER, "It went wrong.")


@each
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "status", "openai", "anthropic"),
    [
        (BackendError(ErrorKind.AUTH, _SAID), 502, "server_error", "api_error"),
        (RunStopped(ErrorKind.UNAVAILABLE, _SAID), 503, "server_error", "overloaded_error"),
        (BackendError(ErrorKind.SERVER, _SAID, status=500), 502, "server_error", "api_error"),
        (BackendError(ErrorKind.NOT_FOUND, _SAID), 502, "server_error", "api_error"),
        (BackendError(ErrorKind.CONNECTION, _SAID), 502, "server_error", "api_error"),
        (BackendError(ErrorKind.TLS, _SAID), 502, "server_error", "api_error"),
        (BackendError(ErrorKind.TURN_TIMEOUT, _SAID), 504, "server_error", "timeout_error"),
        (BackendError(ErrorKind.INTERNAL, _SAID), 500, "server_error", "api_error"),
        (BackendError(ErrorKind.RATE_LIMITED, _SAID, retry_after=1.2), 429, "rate_limit_error", "rate_limit_error"),
        (BackendError(ErrorKind.BAD_REQUEST, _SAID), 400, "invalid_request_error", "invalid_request_error"),
        (BackendError(ErrorKind.BUDGET, _SAID), 400, "invalid_request_error", "invalid_request_error"),
    ],
)
async def test_a_server_failure_is_reported_by_its_status_and_without_its_address(
    path: str, stream: bool, error: Exception, status: int, openai: str, anthropic: str
) -> None:
    async with gateway_client(FakeService([error])) as caller:
        headers = {"x-api-key": caller.key}
        body = {**BODY, "stream": stream}
        async with caller.session.post(caller.gateway.url + path, json=body, headers=headers) as response:
            assert response.status == status
            assert response.headers["x-should-retry"] == "false"  # it was tried again already
            assert response.headers.get("Retry-After") == ("2" if status == 429 else None)
            received = error_of(await response.read())
    assert received["type"] == (anthropic if path == MESSAGES else openai)
    assert "gpu-7" not in received["message"]
    assert "9.9.9.9" not in received["message"]
    assert received["message"].endswith(".")


@each
@pytest.mark.parametrize("stream", [True, False])
async def test_a_context_overflow_is_reported_in_phrases_that_programs_detect(path: str, stream: bool) -> None:
    async with gateway_client(FakeService([BackendError(ErrorKind.CONTEXT_OVERFLOW, "9 > 8")])) as caller:
        status, body = await caller.post(path, {**BODY, "stream": stream})
    error = error_of(body)
    assert status == 400
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ")
    assert error["message"].endswith("9 > 8")
    assert path == MESSAGES or error["code"] == "context_length_exceeded"


@each
@pytest.mark.parametrize("ending", [lambda: HELLO, failing], ids=["answered", "failed"])
async def test_a_waiting_stream_sends_keep_alives(path: str, ending: Any) -> None:
    service = BlockedService(ending)
    keep_alive = b"event: ping" if path == MESSAGES else b": waiting"
    async with gateway_client(service, STREAM_AT_ONCE) as caller:
        headers = {"x-api-key": caller.key}
        async with caller.session.post(
            caller.gateway.url + path, json={**BODY, "stream": True}, headers=headers
        ) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            before = b""
            while before.count(keep_alive) < 3:
                before += await response.content.readany()
            assert b"Hello" not in before
            service.may_answer.set()
            rest = await response.content.read()
    if ending is failing:
        assert b'"message":"It went wrong."' in rest
        assert FAILED[path] in rest
    else:
        assert b'"Hello."' in rest
        assert ENDED[path] in rest.strip().rpartition(b"\n\n")[2]


def overflowing() -> Reply:
    raise BackendError(ErrorKind.CONTEXT_OVERFLOW, "9 > 8")


async def test_opencode_detects_a_context_overflow_in_a_stream() -> None:
    service = BlockedService(overflowing)
    async with gateway_client(service, STREAM_AT_ONCE) as caller:
        headers, url = {"x-api-key": caller.key}, caller.gateway.url + CHAT
        async with caller.session.post(url, json={**BODY, "stream": True}, headers=headers) as response:
            service.may_answer.set()
            body = await response.read()
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event.startswith(b"data: ")]
    seen = orjson.loads(error_of(events[0])["message"])
    assert (response.status, events[1:]) == (200, [b"[DONE]"])
    assert (seen["type"], seen["error"]["code"]) == ("error", "context_length_exceeded")
    assert seen["error"]["message"].startswith("prompt is too long: ")


async def test_an_openai_stream_has_usage_only_if_requested() -> None:
    async with gateway_client(FakeService()) as caller:
        _, without = await caller.post(CHAT, {**BODY, "stream": True})
        _, with_it = await caller.post(CHAT, {**BODY, "stream": True, "stream_options": {"include_usage": True}})
    assert b'"usage"' not in without
    assert b'"prompt_tokens":12,"completion_tokens":3,"total_tokens":15' in with_it


@each
@pytest.mark.parametrize("stream", [True, False])
async def test_the_request_of_a_disconnected_program_is_cancelled(path: str, stream: bool) -> None:
    service = BlockedService(lambda: HELLO)
    async with gateway_client(service, STREAM_AT_ONCE) as caller:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(caller.post(path, {**BODY, "stream": stream}))
            await service.is_requested.wait()
            asking.cancel()
        await service.was_cancelled.wait()


@each
@pytest.mark.parametrize("stream", [True, False])
async def test_the_requests_of_a_dismissed_agent_are_cancelled(path: str, stream: bool) -> None:
    service = BlockedService(lambda: HELLO)
    async with gateway_client(service, STREAM_AT_ONCE) as caller, asyncio.TaskGroup() as group:
        asking = group.create_task(_broken_off(caller, path, stream))
        await service.is_requested.wait()
        caller.gateway.dismiss("agent-1")
        await service.was_cancelled.wait()
        assert await asking


async def test_closing_the_gateway_cancels_requests() -> None:
    service = BlockedService(lambda: HELLO)
    async with asyncio.timeout(60), aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        async with open_gateway(service) as gateway:
            caller = Caller(gateway, session, gateway.admit("agent-1", {}))
            asking = group.create_task(_broken_off(caller, CHAT, stream=False))
            await service.is_requested.wait()
        assert service.was_cancelled.is_set()
        assert await asking
        with pytest.raises(aiohttp.ClientConnectorError):
            await caller.post(CHAT, BODY)


async def _broken_off(caller: Caller, path: str, stream: bool) -> bool:
    try:
        await caller.post(path, {**BODY, "stream": stream})
    except aiohttp.ClientError:
        return True
    return False
