"""Hints for vLLM servers with the plugin batch-agent-vllm: sent to these and to no others."""

from typing import Any

import orjson
import pytest
from tests.support.loopback_servers import Line, RawRequest, RawServer, raw_server

from batch_agent import BatchAgent, Tool
from batch_agent.backends.connect import connect
from batch_agent.backends.diagnostics import diagnose
from batch_agent.core.protocols.backend import TakesHints
from batch_agent.core.requests import ContextHint

METRICS = b"""\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="0",num_gpu_blocks="100"} 1.0
"""
PLUGIN = METRICS + b'batch_agent:plugin_info{engine="0",model_name="m",version="0.1.0"} 1.0\n'
ABLE = {"version": "0.1.0", "pins": True, "policy": "next use", "device_tokens": 3200, "host_tokens": 64_000}


@Tool.define(effect="read")
def look_up(name: str) -> str:
    """Look a person up."""
    return f"{name} is 36."


def vllm(metrics: bytes, capabilities: dict[str, Any] | None = None, calls: bool = False) -> Any:
    async def answer(request: RawRequest, line: Line) -> None:
        match request.path:
            case "/v1/models":
                await line.reply(200, orjson.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}))
            case "/metrics":
                await line.reply(200, metrics)
            case "/v1/completions":
                found = {} if capabilities is None else {"kv_transfer_params": {"batch_agent": capabilities}}
                await line.reply(200, orjson.dumps({"choices": [], **found}))
            case "/v1/chat/completions":
                messages = orjson.loads(request.body)["messages"]
                if calls and messages[-1]["role"] == "user":
                    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"name":"A"}'}}
                    choice = {"message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
                    await line.reply(200, orjson.dumps({"choices": [choice]}), "content-type: application/json\r\n")
                else:
                    await line.say("fine")
            case _:
                await line.reply(404, b"")

    return answer


def hints(server: RawServer, path: str) -> list[dict[str, Any]]:
    bodies = [orjson.loads(request.body) for request in server.requests if request.path == path]
    return [body.get("kv_transfer_params", {}).get("batch_agent", {}) for body in bodies]


async def test_agents_of_one_turn_say_that_they_are_used_once() -> None:
    async with raw_server(vllm(PLUGIN, ABLE)) as server:
        [result] = await BatchAgent.run(task="{it}", inputs=["a"], backend=server.url, system_prompt="s" * 400)
        [hint] = hints(server, "/v1/chat/completions")
        assert hints(server, "/v1/completions") == [{"probe": True}]  # its end needs no request of its own
        assert hint == {"session": result.key, "drop": True, "once": True, "shared_tokens": hint["shared_tokens"]}
        assert hint["shared_tokens"] >= 100


@pytest.mark.parametrize(("turns", "knows_its_last"), [(2, True), (3, False)])
async def test_the_end_of_an_agent_is_said_with_its_last_turn_or_afterwards(turns: int, knows_its_last: bool) -> None:
    async with raw_server(vllm(PLUGIN, ABLE, calls=True)) as server:
        [result] = await BatchAgent.run(
            task="{it}", inputs=["a"], backend=server.url, tools=[look_up], max_turns=turns, streaming=False
        )
        assert result.turns == 2
        first, last = (hint for hint in hints(server, "/v1/chat/completions") if hint)
        assert first["session"] == last["session"] == result.key
        assert "drop" not in first
        assert last.get("drop", False) == knows_its_last
        assert "once" not in last
        ended = [] if knows_its_last else [{"session": result.key, "drop": True, "update": True}]
        assert hints(server, "/v1/completions") == [{"probe": True}, *ended]


async def test_a_server_without_the_plugin_gets_no_hints() -> None:
    async with raw_server(vllm(METRICS)) as server:
        await BatchAgent.run(task="{it}", inputs=["a"], backend=server.url)
        assert hints(server, "/v1/chat/completions") == [{}]
        assert not hints(server, "/v1/completions")


async def test_the_users_own_transfer_parameters_are_kept() -> None:
    async with raw_server(vllm(PLUGIN, ABLE)) as server:
        await BatchAgent.run(
            task="{it}", inputs=["a"], backend=server.url, extra={"kv_transfer_params": {"max_load_tokens": 5}}
        )
        [request] = [request for request in server.requests if request.path == "/v1/chat/completions"]
        parameters = orjson.loads(request.body)["kv_transfer_params"]
        assert parameters["max_load_tokens"] == 5
        assert parameters["batch_agent"]["once"] is True
        assert request.body.count(b"kv_transfer_params") == 1


@pytest.mark.parametrize(
    ("capabilities", "capacity"),
    [
        (ABLE, 64_000),
        (ABLE | {"host_tokens": None}, 3200),
        (ABLE | {"exclusive": True, "host_tokens": 3000}, 6200),
        (ABLE | {"exclusive": True, "host_tokens": None}, 3200),
    ],
)
async def test_the_capacity_includes_the_host_tier_that_the_plugin_reports(
    capabilities: dict[str, Any], capacity: int
) -> None:
    async with raw_server(vllm(PLUGIN, capabilities)) as server:
        backend = await connect(server.url, None, uses_tools=False, notify=lambda text: None)
        await backend.aclose()
        assert backend.traits.takes_hints
        assert (backend.traits.kv_tokens, backend.traits.kv_running_tokens) == (capacity, 3200)


async def test_a_hint_without_a_request_of_the_agent_is_an_update() -> None:
    async with raw_server(vllm(PLUGIN, ABLE)) as server:
        backend = await connect(server.url, None, uses_tools=False, notify=lambda text: None)
        assert isinstance(backend, TakesHints)
        await backend.hint(ContextHint("a", next_use=2.5))
        await backend.aclose()
        assert hints(server, "/v1/completions")[-1] == {"session": "a", "next_use_s": 2.5, "update": True}


@pytest.mark.parametrize(
    ("metrics", "capabilities", "state", "words"),
    [
        (
            PLUGIN,
            ABLE,
            "ok",
            "batch-agent-vllm 0.1.0, pins contexts of waiting agents, host tier by next use, host tier",
        ),
        (PLUGIN, ABLE | {"exclusive": True}, "ok", "host tier of 64,000 tokens beside the device"),
        (PLUGIN, None, "ok", "too busy to say more"),
        (METRICS, None, "off", "not active"),
    ],
)
async def test_the_doctor_says_what_the_plugin_does(
    metrics: bytes, capabilities: dict[str, Any] | None, state: str, words: str
) -> None:
    async with raw_server(vllm(metrics, capabilities)) as server:
        checks = {check.name: check async for check in diagnose(server.url, None, lambda text: None)}
        assert checks["KV plugin"].state == state
        assert words in checks["KV plugin"].found
        assert bool(checks["KV plugin"].advice) == (state == "off")
