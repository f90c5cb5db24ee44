"""Backend with every kind of fault, which counts the tokens it bills."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.engine_harness import asked

from batch_agent import BackendError, ErrorKind
from batch_agent.core.messages import ToolCall
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.requests import CallDelta, Delta, Finished, Request, TextDelta, Usage

TRAITS = Traits("faulty", "m", native_tools=True, json_schema=True, json_schema_with_tools=True, inflight=200)
FAULTS = ("ok", "ok", "ok", "cut", "abort", "reset", "hang", "refused", "overloaded", "silent", "half told", "absurd")
ODD = (-5, 10**12, 0)


class FaultyServer:
    """Bills everything that it began. Sends some requests twice, as a client does on a stale connection."""

    def __init__(self, seed: int, second: float = 1.0) -> None:
        """`second`: how long a second lasts."""
        self.traits = TRAITS
        self._second = second
        self.billed = 0
        self._dice = random.Random(seed)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        fault = self._dice.choice(FAULTS)
        if fault in ("refused", "overloaded"):
            await asyncio.sleep(self._second * self._dice.random())
            status = 429 if fault == "refused" else 503
            kind = ErrorKind.RATE_LIMITED if fault == "refused" else ErrorKind.UNAVAILABLE
            raise BackendError(kind, "later", status=status, retry_after=0.1 * self._second)
        usage = self._bill(request)
        if self._dice.random() < 0.1 and request.charge is not None:
            if not request.charge.again():
                raise BackendError(ErrorKind.CONNECTION, "stale")
            usage = self._bill(request)
        yield self._deltas(fault, usage)

    def _bill(self, request: Request) -> Usage:
        given = len(asked(request)) // 2 + 20 * (len(request.messages) - 1)
        said = self._dice.randint(1, request.sampling.max_tokens or 1)
        self.billed += given + said
        return Usage(given, 0, said)

    async def _deltas(self, fault: str, usage: Usage) -> AsyncIterator[Delta]:
        await asyncio.sleep(10 * self._second * self._dice.random())
        yield TextDelta("fine")
        match fault:
            case "cut":
                return
            case "abort":
                raise BackendError(ErrorKind.SERVER, "given up", status=200)
            case "reset":
                raise BackendError(ErrorKind.CONNECTION, "reset")
            case "hang":
                await asyncio.Event().wait()
            case "silent":
                usage = Usage()
            case "half told":
                usage = self._dice.choice((Usage(usage.input), Usage(0, 0, usage.output)))
            case "absurd":
                usage = Usage(self._dice.choice(ODD), 0, self._dice.choice(ODD))
        if self._dice.random() < 0.3:
            yield CallDelta(ToolCall(f"c{self._dice.random()}", "wait", "{}"))
        yield Finished("stop", usage)

    async def leave(self, agent: str) -> None:
        pass

    async def aclose(self) -> None:
        pass
