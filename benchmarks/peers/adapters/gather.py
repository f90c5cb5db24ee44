"""The loop that people write: aiohttp, a semaphore, gather. An agent keeps its slot while its tool runs."""

import json
from typing import Any

import aiohttp

from benchmarks.peers.work import Stopwatch, Tally, Work, gathered

Message = dict[str, Any]


async def run(work: Work, tally: Tally) -> None:
    options = work.options
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), raise_for_status=True) as session:

        async def ask(agent: int, messages: list[Message]) -> Message:
            url = f"{work.urls[agent % len(work.urls)]}/v1/chat/completions"
            async with session.post(url, json={**options, "messages": messages}) as response:
                message: Message = (await response.json())["choices"][0]["message"]
                return message

        async def one(agent: int) -> str:
            messages = work.messages(agent)
            message = await ask(agent, messages)
            while message.get("tool_calls"):
                messages.append(message)
                for call in message["tool_calls"]:
                    result = await tally.look(**json.loads(call["function"]["arguments"]))
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
                message = await ask(agent, messages)
            return str(message["content"])

        async def streamed(agent: int) -> str:
            watch, pieces = Stopwatch(tally), list[str]()
            body = {**options, "messages": work.messages(agent), "stream": True}
            async with session.post(f"{work.url}/v1/chat/completions", json=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        pieces.append(json.loads(line[6:])["choices"][0]["delta"].get("content") or "")
                        watch.see(pieces[-1])
            return "".join(pieces)

        await gathered(work, tally, streamed if work.is_streamed else one)
