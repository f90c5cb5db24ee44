"""The same loop on httpx, which is what the SDKs were made of."""

# mypy: ignore-errors
# What it imports is in an environment of its own.

import json
from typing import Any

import httpx

from benchmarks.peers.work import Stopwatch, Tally, Work, gathered

Message = dict[str, Any]


async def run(work: Work, tally: Tally) -> None:
    options = work.options
    limits = httpx.Limits(max_connections=work.inflight, max_keepalive_connections=work.inflight)
    async with httpx.AsyncClient(limits=limits, timeout=300) as client:

        async def ask(agent: int, messages: list[Message]) -> Message:
            url = f"{work.urls[agent % len(work.urls)]}/v1/chat/completions"
            response = await client.post(url, json={**options, "messages": messages})
            message: Message = response.raise_for_status().json()["choices"][0]["message"]
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
            async with client.stream("POST", f"{work.url}/v1/chat/completions", json=body) as response:
                async for line in response.raise_for_status().aiter_lines():
                    if line.startswith("data: {"):
                        pieces.append(json.loads(line[6:])["choices"][0]["delta"].get("content") or "")
                        watch.see(pieces[-1])
            return "".join(pieces)

        await gathered(work, tally, streamed if work.is_streamed else one)
