"""Many short prompts: in lists, and each as a request of its own."""

import asyncio
import time
from functools import partial
from typing import Any

import aiohttp

from batch_agent import Response, VLLMPool
from batch_agent.core.requests import Sampling

from .token_texts import NONCE_TOKENS, nonce
from .vllm_process import say
from .workloads import Stage

_PROMPTS, _TOKENS, _OUTPUT, _ROUNDS = 2_000, 60, 24, 2


async def pools(stage: Stage) -> None:
    """A pool of one endpoint, in both of its ways, and a loop on aiohttp, with the same prompts."""
    count = stage.scale.of_agents(_PROMPTS)
    stage.notes.put({"prompts": count, "tokens": _TOKENS, "output": _OUTPUT}, "pools", "setup")
    sampling = Sampling(extra={"ignore_eos": True})
    async with VLLMPool([stage.server.url], max_tokens=_OUTPUT, sampling=sampling, prompts_per_endpoint=1024) as pool:
        for round_ in range(_ROUNDS):
            for way in ("lists", "alone", "loop"):
                prompts, came = _prompts(stage, count), list[float]()
                requests, began = pool.requests, time.monotonic()
                if way == "loop":
                    failed = await _loop(stage, prompts, came)
                else:
                    send = pool.send_all_batched if way == "lists" else pool.send_all
                    answers = await send(prompts, on_response=partial(_note, came))
                    failed = sum(answer.finish is None for answer in answers)
                took: dict[str, Any] = {
                    "wall_s": round(time.monotonic() - began, 3),
                    "first_s": round(min(came) - began, 3),
                    "requests": count if way == "loop" else pool.requests - requests,
                    "failed": failed,
                }
                stage.notes.put(took, "pools", way, f"round_{round_}")
                say(f"pools {way}: {took}")


def _note(came: list[float], _: Response) -> None:
    came.append(time.monotonic())


def _prompts(stage: Stage, count: int) -> list[str]:
    start = nonce()
    return [f"{at} {start} {stage.words.text(f'pool {at}', _TOKENS - NONCE_TOKENS - 1)}" for at in range(count)]


async def _loop(stage: Stage, prompts: list[str], came: list[float]) -> int:
    room = asyncio.Semaphore(1024)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(prompt: str) -> bool:
            messages = [{"role": "user", "content": prompt}]
            body = {"model": stage.server.model, "messages": messages, "max_tokens": _OUTPUT, "ignore_eos": True}
            async with room, session.post(f"{stage.server.url}/v1/chat/completions", json=body) as response:
                said = await response.json()
                came.append(time.monotonic())
                return "choices" in said

        return sum(not well for well in await asyncio.gather(*map(one, prompts)))
