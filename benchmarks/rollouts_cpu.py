"""What `tokens=True` costs the client: CPU of the same run with and without it.

    python -m benchmarks.rollouts_cpu [--agents 1000] [--rounds 5]

Each agent calls a tool and answers, with a checkpoint in both cases. The server is a process of its own that answers at
once, in the format of vLLM 0.32: with prompts of 203 and 276 ids, 36 and 14 sampled ids and their log probabilities, as
the agents of benchmarks/rollouts.py have them. It also renders prompts, which runs with the option ask for before later
turns; each agent has a tool result of its own. Runs alternate; CPU is that of this process, user and system.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from zlib import crc32

from aiohttp import web

from batch_agent import BatchAgent
from benchmarks import report

END, NEWLINE, OPEN = 2, 10, 11
SYSTEM = [OPEN, *range(100, 238), END, NEWLINE]
LENGTHS = {"user": 58, "assistant": 35, "tool": 32}
"""Of messages as the template renders them, without the ids around."""
CALL_IDS, ANSWER_IDS = [*range(400, 435), END], [*range(500, 513), END]


def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
    """As a template renders them: 203 ids for a first prompt, and 276 with the call and its result. What the model
    sampled is rendered in other ids, as it is if the model spells a call in another way than the template."""
    ids = list(SYSTEM)
    for message in messages:
        word = 1000 + crc32(json.dumps(message).encode()) % 30_000
        ids += [OPEN, *[word] * LENGTHS[message["role"]], END, NEWLINE]
    return [*ids, OPEN]


def reply(body: dict[str, Any]) -> dict[str, Any]:
    turn = int(body["messages"][-1]["role"] == "tool")
    sampled = ANSWER_IDS if turn else CALL_IDS
    given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
    prompt = given or prompt_ids(body["messages"])
    arguments = json.dumps({"ship": body["messages"][-1]["content"]})
    call = {"id": "c1", "type": "function", "function": {"name": "berth_of", "arguments": arguments}}
    message: dict[str, Any] = {"role": "assistant", "content": "The ship lies at berth two, pier It." if turn else None}
    if not turn:
        message["tool_calls"] = [call]
    wanted = body.get("return_token_ids")
    entry = {"token": "Sp", "logprob": -0.0011448265286162496, "bytes": [32, 83], "top_logprobs": []}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": [entry] * len(sampled)} if wanted else None,
        "finish_reason": "stop" if turn else "tool_calls",
        "token_ids": sampled if wanted else None,
    }
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled), "total_tokens": len(prompt + sampled)}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        "usage": usage,
        "system_fingerprint": "vllm-0.32.0",
        "prompt_token_ids": prompt if wanted else None,
    }


def compact(value: Any) -> str:
    """As vLLM writes JSON."""
    return json.dumps(value, separators=(",", ":"))


def serve(ready: Connection) -> None:
    async def chat(request: web.Request) -> web.Response:
        return web.json_response(reply(await request.json()), dumps=compact)

    async def tokenize(request: web.Request) -> web.Response:
        body = await request.json()
        ids = prompt_ids(body["messages"]) if "messages" in body else [1]
        return web.json_response({"count": len(ids), "max_model_len": 4096, "tokens": ids}, dumps=compact)

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]})

    async def main() -> None:
        app = web.Application()
        app.add_routes(
            [web.post("/v1/chat/completions", chat), web.post("/tokenize", tokenize), web.get("/v1/models", models)]
        )
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        ready.send(site._server.sockets[0].getsockname()[1])  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    asyncio.run(main())


def berth_of(ship: str) -> str:
    """Finds the berth of a ship."""
    return f"{ship} lies at berth {len(ship)}, pier <{ship[:2]}>."


async def run(port: int, agents: int, folder: Path, *, tokens: bool) -> float:
    used = time.process_time()
    results = await BatchAgent.run(
        task="Where is the ship {it}?",
        inputs=[f"number {number}" for number in range(agents)],
        tools=[berth_of],
        backend=f"vllm://127.0.0.1:{port}",
        max_inflight=32,
        tokens=tokens,
        checkpoint_dir=folder,
        progress=False,
    )
    assert all(result.ok and result.turns == 2 for result in results)
    return time.process_time() - used


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("run.sqlite3*"))


async def measure(port: int, agents: int, rounds: int, scratch: Path) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    sizes = dict[str, int]()
    for number in range(rounds + 1):  # the first one is not counted
        for name in seconds:
            folder = scratch / f"{name}-{number}"
            used = await run(port, agents, folder, tokens=name == "with")
            sizes[name] = size_of(folder)
            if number:
                seconds[name].append(round(used, 3))
    cpu = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "agents": agents,
        "turns": 2 * agents,
        "cpu_s": seconds,
        "cpu_ms_per_turn": {name: round(500 * value / agents, 3) for name, value in cpu.items()},
        "cpu_ratio": round(cpu["with"] / cpu["without"], 3),
        "checkpoint_bytes": sizes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        port = ours.recv()
        with tempfile.TemporaryDirectory() as scratch:
            numbers = asyncio.run(measure(port, options.agents, options.rounds, Path(scratch)))
    finally:
        server.terminate()
        server.join(10)
    print(json.dumps(numbers, indent=1))
    print(report.write("rollouts_cpu", numbers))


if __name__ == "__main__":
    main()
