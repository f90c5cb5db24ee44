"""The peer: the loop that a competent user writes, on aiohttp, streaming."""

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Literal

import aiohttp
import orjson

from batch_agent.agent.references import pointer
from batch_agent.core.requests import Usage

from .scenario import TOOL, Scene
from .turn_recorder import Watch, now

_SILENCE = 240.0
Message = dict[str, Any]


async def plain(
    url: str,
    model: str,
    scene: Scene,
    watch: Watch,
    *,
    at_once: int | None = None,
    placement: Literal["inline", "first"] = "inline",
) -> None:
    """Runs all agents of the scene: all at once, or `at_once` of them, each from its first turn to its last.
    `placement`: of tool results; "first": before the agent's own text, in one order for all, as an expert places them.
    """
    room = asyncio.Semaphore(at_once) if at_once else nullcontext()
    timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        talker = _Talker(session, f"{url}/v1/chat/completions", model, scene, watch, placement == "first")

        async def one(agent: int) -> None:
            async with room:
                failure = None
                try:
                    await talker.live(agent)
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                    failure = f"{type(error).__name__}: {error}"
                watch.agent_done(failure)

        await asyncio.gather(*(one(agent) for agent in range(len(scene.tasks))))


class _Talker:
    def __init__(
        self, session: aiohttp.ClientSession, url: str, model: str, scene: Scene, watch: Watch, is_placed_first: bool
    ) -> None:
        self._session = session
        self._url = url
        self._model = model
        self._scene = scene
        self._watch = watch
        self._is_placed_first = is_placed_first
        self._found: dict[str, asyncio.Task[str]] = {}

    async def live(self, agent: int) -> None:
        scene = self._scene
        messages: list[Message] = [{"role": "system", "content": scene.system}] if scene.system else []
        task: Message = {"role": "user", "content": scene.tasks[agent]}
        messages.append(task)
        read: dict[str, str] = {}
        for turn in range(scene.turns):
            await self._ask(messages, agent, turn)
            if scene.is_last(turn):
                return
            arguments = scene.arguments(agent, turn)
            call = {"id": f"call-{turn}", "type": "function", "function": {"name": TOOL, "arguments": arguments}}
            messages.append({"role": "assistant", "content": scene.said or None, "tool_calls": [call]})
            found = await self._look_up(scene.key(agent, turn))
            if self._is_placed_first:
                read[heading := f"{TOOL}(key={orjson.dumps(scene.key(agent, turn)).decode()})"] = found
                task["content"] = _with_documents(read, scene.tasks[agent])
                found = pointer(heading)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})

    async def _look_up(self, key: str) -> str:
        """What no other agent needs is looked up for each; documents are kept for all agents."""
        if self._scene.text is None:
            return await self._scene.look_up(key, self._watch)
        if key not in self._found:
            self._found[key] = asyncio.ensure_future(self._scene.look_up(key, self._watch))
        return await asyncio.shield(self._found[key])

    async def _ask(self, messages: list[Message], agent: int, turn: int) -> None:
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": self._scene.output,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent, first, usage = now(), None, None
        async with self._session.post(self._url, json=body) as response:
            if response.status != 200:
                raise ValueError(f"{response.status}: {(await response.text())[:300]}")
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = orjson.loads(line[6:])
                if first is None and any(choice["delta"].get("content") for choice in chunk["choices"]):
                    first = now()
                usage = chunk.get("usage") or usage
        if usage is None:
            raise ValueError("the stream ended without usage")
        before = self._scene.key(agent, turn - 1)
        self._watch.turn_done(agent, turn, before, sent, now() if first is None else first, _counted(usage))


def _with_documents(read: Mapping[str, str], task: str) -> str:
    blocks = [f"<reference call='{heading}'>\n{read[heading]}\n</reference>\n" for heading in sorted(read)]
    return f"<references>\n{''.join(blocks)}</references>\n\n{task}"


def _counted(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(usage["prompt_tokens"], details.get("cached_tokens") or 0, usage["completion_tokens"])
