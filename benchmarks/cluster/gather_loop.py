"""The peer: the loop that people write by hand, in one process, or in several that each have a fixed share."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import orjson

from batch_agent import Tool

Tell = Callable[[int, str], None]


async def gather(url: str, tasks: dict[int, str], tool: Tool, at_once: int, tell: Tell) -> None:
    """Agents by number; `tell` hears of each answer as it comes."""
    room = asyncio.Semaphore(at_once)
    offered = [
        {"type": "function", "function": {"name": tool.name, "parameters": tool.spec.parameters, "description": ""}}
    ]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
            body = {"model": "sim", "messages": messages, "tools": offered}
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                message: dict[str, Any] = (await response.json())["choices"][0]["message"]
                return message

        async def one(agent: int, task: str) -> None:
            messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
            async with room:
                message = await ask(messages)
                while message.get("tool_calls"):
                    messages.append(message)
                    messages += await asyncio.gather(*(_called(tool, call) for call in message["tool_calls"]))
                    message = await ask(messages)
            tell(agent, message["content"])

        await asyncio.gather(*(one(agent, task) for agent, task in tasks.items()))


async def _called(tool: Tool, call: dict[str, Any]) -> dict[str, Any]:
    arguments = orjson.loads(call["function"]["arguments"])
    return {"role": "tool", "tool_call_id": call["id"], "content": await tool.function(**arguments)}
