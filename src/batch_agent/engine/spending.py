"""Backends within a budget: every request that goes through them is paid for, whoever sends it."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ..core.errors import BackendError, ErrorKind
from ..core.interfaces import Backend
from ..core.messages import Assistant, Message, ToolResults, User
from ..core.requests import NO_USAGE, Delta, Finished, Request, Usage
from ..core.traits import Traits
from ..schedule.budget import FREE, Amount, Budget, Price, Reservation

_MAYBE_BILLED = frozenset({ErrorKind.CONNECTION, ErrorKind.TURN_TIMEOUT})
_LONGEST_ANSWER = 32_768
"""Tokens, where neither max_tokens nor the model's window says how long an answer may get."""
_TEMPLATE = 64
"""Tokens that a chat template may add to a message."""


class Purse:
    """What may be spent, by all who pay from it. Who does not fit now waits for requests under way to be settled."""

    def __init__(self, budget: Budget, deadline: float | None = None) -> None:
        """`deadline`: seconds from now."""
        self.budget = budget
        self.limit = deadline
        self.until = None if deadline is None else asyncio.get_running_loop().time() + deadline
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._needs: dict[int, Amount] = {}
        """Of those who wait, by a number for each."""
        self._numbers = itertools.count()
        self._ask: Callable[[], None] | None = None

    @property
    def needs(self) -> list[Amount]:
        """What those who wait might spend, one by one."""
        return list(self._needs.values())

    def share(self, ask: Callable[[], None]) -> None:
        """Others pay from the same budget: what is spent here has to be leased first. `ask` is called when somebody
        begins to wait."""
        self._ask = ask
        self.budget.lease(Amount())

    def lease(self, allowed: Amount, elsewhere: Amount) -> None:
        """All that is spent here may come to so much by now; others have spent so much."""
        self.budget.lease(allowed)
        self.budget.heard(elsewhere)
        self._wake()

    async def reserve(self, worst: Usage, price: Price) -> Reservation:
        """Raises BackendError for what can never fit."""
        return self.budget.reserve(worst, price) or await self._wait(worst, price)

    def settle(self, reserved: Reservation, usage: Usage) -> None:
        self.budget.settle(reserved, usage)
        self._wake()

    async def _wait(self, worst: Usage, price: Price) -> Reservation:
        number, reserved, ask = next(self._numbers), None, self._ask
        self._needs[number] = Amount.of(worst, price)
        try:
            while reserved is None:
                if self.budget.is_out(worst, price):
                    raise BackendError(ErrorKind.BUDGET, self._used_up(worst))
                if ask is not None:
                    ask()
                    ask = None  # once: others may have it for a while
                settled = asyncio.get_running_loop().create_future()
                self._waiting.append(settled)
                await settled
                reserved = self.budget.reserve(worst, price)
        finally:
            del self._needs[number]
        return reserved

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _used_up(self, worst: Usage) -> str:
        spent = f"{self.budget.tokens:,} tokens" + (f" (${self.budget.usd:.4f})" if self.budget.usd else "")
        might = worst.input + worst.output
        return f"The budget is used up: {spent} were spent, and this might take {might:,} tokens. What is done is kept."


class Spending:
    """Stands before the backend of a run. Requests that can never fit, or come after the deadline, fail with a budget
    error."""

    def __init__(self, backend: Backend, purse: Purse, price: Price | None = None) -> None:
        """`price`: None where nobody needs to know it."""
        self._backend = backend
        self._purse = purse
        self._price = price or FREE

    @property
    def traits(self) -> Traits:
        return self._backend.traits

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        worst = self._worst(request)
        clock = asyncio.timeout_at(self._purse.until)
        try:
            async with clock:
                reserved = await self._purse.reserve(worst, self._price)
                meter = _Meter()
                try:
                    async with self._backend.stream(request) as deltas:
                        yield meter.read(deltas)
                except BackendError as error:
                    meter.usage = worst if error.kind in _MAYBE_BILLED else NO_USAGE
                    raise
                finally:
                    # A server that does not say what it took, or an answer that was left early, may have cost it all.
                    self._purse.settle(reserved, meter.usage or worst)
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise BackendError(
                ErrorKind.BUDGET, f"The run's deadline of {self._purse.limit:g} s has passed."
            ) from error

    async def leave(self, agent: str) -> None:
        await self._backend.leave(agent)

    async def aclose(self) -> None:
        await self._backend.aclose()

    def _worst(self, request: Request) -> Usage:
        """A token is at least a byte; an answer is as long as it may get."""
        window = self.traits.context_tokens or _LONGEST_ANSWER
        tools = sum(len(tool.name) + len(tool.description) + len(str(tool.parameters)) for tool in request.prompt.tools)
        text = len(request.prompt.system.encode()) + tools + sum(map(_bytes, request.messages))
        given = text + _TEMPLATE * (len(request.messages) + 1 + len(request.prompt.tools))
        return Usage(min(given, window), 0, request.sampling.max_tokens or window)


class _Meter:
    """Reads along, for the usage at the end."""

    def __init__(self) -> None:
        self.usage: Usage | None = None

    async def read(self, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        async for delta in deltas:
            if isinstance(delta, Finished) and delta.usage != NO_USAGE:
                self.usage = delta.usage
            yield delta


def _bytes(message: Message) -> int:
    match message:
        case User(text):
            return len(text.encode(errors="replace"))
        case Assistant():
            parts = [message.text, *(call.name + call.arguments for call in message.calls)]
            return sum(len(part.encode(errors="replace")) for part in [*parts, *(t.text for t in message.thoughts)])
        case ToolResults(results):
            return sum(len(result.content.encode(errors="replace")) for result in results)
