"""Loopback server that bills every request it began to answer, whether or not the reply arrives."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import orjson

Fault = Callable[[random.Random], str]
"""What happens to a request: "ok", or one of the names in `BillingServer._reply`."""


def always(name: str) -> Fault:
    return lambda dice: name


def often(share: float, name: str) -> Fault:
    return lambda dice: name if dice.random() < share else "ok"


def _well(dice: random.Random) -> str:
    return "ok"


class BillingServer:
    """OpenAI's dialect. A prompt takes a token for each of its characters, or for every few of them; an answer up to
    max_tokens."""

    def __init__(self, fault: Fault = _well, *, chars_per_token: float = 4.0, seconds: float = 0.0) -> None:
        self._fault = fault
        self._chars_per_token = chars_per_token
        self._seconds = seconds
        self._dice = random.Random(7)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.billed = 0
        self.input = 0
        self.output = 0
        self.requests = 0
        self.by_prompt: Counter[str] = Counter()
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = started.result(30)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if not await self._answer(lines[0], body, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, line: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        """False: the connection ends."""
        if line.startswith("GET"):
            models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
            writer.write(_http(200 if line.split()[1].endswith("/models") else 404, orjson.dumps(models)))
            return True
        asked = orjson.loads(body)
        text = "".join(str(message.get("content") or "") for message in asked["messages"])
        tools = orjson.dumps(asked["tools"]).decode() if asked.get("tools") else ""
        taken = max(1, int(len(text + tools) / self._chars_per_token))
        said = self._dice.randint(1, asked.get("max_tokens") or asked.get("max_completion_tokens") or 20)
        self.requests += 1
        self.by_prompt[text[:80]] += 1
        self.input += taken
        self.output += said
        self.billed += taken + said
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return self._reply(self._fault(self._dice), taken, said, writer)

    def _reply(self, fault: str, taken: int, said: int, writer: asyncio.StreamWriter) -> bool:
        usage: dict[str, Any] | None = {"prompt_tokens": taken, "completion_tokens": said}
        reason, status, whole = "stop", 200, True
        match fault:
            case "drop":
                return False
            case "abort":
                reason = "abort"
            case "broken":
                whole = False
            case "error":
                status = 500
            case "no completion":
                usage = {"prompt_tokens": taken}
            case "negative":
                usage = {"prompt_tokens": -taken, "completion_tokens": -said}
            case "none":
                usage = None
            case "zero":
                usage = {"prompt_tokens": 0, "completion_tokens": 0}
            case "floats":
                usage = {"prompt_tokens": 0.5, "completion_tokens": "7"}
            case "cached":
                usage = {**(usage or {}), "prompt_tokens_details": {"cached_tokens": 10**12}}
        reply = {"choices": [{"message": {"role": "assistant", "content": "fine"}, "finish_reason": reason}]}
        data = orjson.dumps({**reply, "usage": usage})
        writer.write(_http(status, data if whole else data[:-5]))
        return True


def _http(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} S\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
