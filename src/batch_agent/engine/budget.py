"""Account of a budget in a checkpoint: what may have been spent is durable before it is sent.

Backends within a budget: every request that goes through them is paid for, whoever sends it.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from ..core.errors import BackendError, ErrorKind, StoreError
from ..core.messages import Assistant, Message, Prompt, ToolResults, User
from ..core.protocols import Account, Backend, Store, Traits
from ..core.requests import NO_USAGE, Delta, Finished, Request, Sampling, Usage
from ..core.schema import JsonSchema
from ..schedule.budget import FREE, Amount, Budget, Price, Reservation
from ..schedule.fair_share import lease

_LONGEST_ANSWER = 32_768
"""Tokens, where neither max_tokens nor the model's window says how long an answer may get."""
_TEMPLATE = 64
"""Tokens that a chat template may add to a message."""
_UNSEEN = 65_536
"""Tokens that a server may have used beyond what it was sent, for instructions of its own. More is not believed."""

PriceOf = Callable[[str], Price]


class BudgetPool:
    """What may be spent, by all who pay from it. Who does not fit now waits for requests under way to be settled."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._needs: dict[int, Amount] = {}
        """Of those who wait, by a number for each."""
        self._numbers = itertools.count()
        self._ask: Callable[[], None] | None = None
        self._asks_again = False
        self._broken: StoreError | None = None

    @property
    def needs(self) -> list[Amount]:
        """What those who wait might spend, one by one."""
        return list(self._needs.values())

    def share(self, ask: Callable[[], None], *, asks_again: bool = False) -> None:
        """Others pay from the same budget, or an account is kept of it: what is spent here has to be leased first.
        `ask` is called when somebody begins to wait; `asks_again`: and whenever it was woken up in vain."""
        self._ask, self._asks_again = ask, asks_again
        self.budget.lease(Amount())

    def lease(self, allowed: Amount, elsewhere: Amount) -> None:
        """All that is spent here may come to so much by now; others have spent so much."""
        self.budget.lease(allowed)
        self.budget.heard(elsewhere)
        self._wake()

    def fail(self, error: StoreError) -> None:
        """Nothing can be leased any more: whoever waits for more is told why."""
        self._broken = error
        self._wake()

    async def reserve(self, worst: Usage, price: Price) -> Reservation:
        """Raises BackendError for what can never fit, and StoreError where the account cannot be kept."""
        return self.budget.reserve(worst, price) or await self._wait(worst, price)

    def settle(self, reserved: Reservation, usage: Usage) -> None:
        self.budget.settle(reserved, usage)
        self._wake()

    async def _wait(self, worst: Usage, price: Price) -> Reservation:
        number, reserved, ask = next(self._numbers), None, self._ask
        self._needs[number] = Amount.of(worst, price)
        try:
            while reserved is None:
                if self._broken is not None:
                    raise self._broken
                if self.budget.is_out(worst, price):
                    raise BackendError(ErrorKind.BUDGET, self._used_up(worst))
                if ask is not None:
                    ask()
                    ask = self._ask if self._asks_again else None  # once: others may have it for a while
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


class BudgetedBackend:
    """Stands before the backend of a run. Requests that can never fit fail with a budget error. Whatever may have been
    billed counts: at what the server tells of it, or at its worst."""

    def __init__(
        self, backend: Backend, purse: BudgetPool, price: PriceOf | None = None, window: int | None = None
    ) -> None:
        """`price`: of each model that is asked; None where nobody needs to know it. `window`: of the model, as the
        user tells it; believed where the server says nothing."""
        self._backend = backend
        self._purse = purse
        self._price = price
        self._window = window
        self._prompt: tuple[Prompt, int] | None = None
        self._schema: tuple[JsonSchema | None, int] = (None, 0)
        self._unseen = 0
        """Tokens that the server was seen to use beyond what it was sent."""

    @property
    def traits(self) -> Traits:
        return self._backend.traits

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        worst = self._worst(request)
        price = FREE if self._price is None else self._price(request.model)
        charge = _Charge(self._purse, worst, self._unseen, await self._purse.reserve(worst, price))
        try:
            async with self._backend.stream(replace(request, charge=charge)) as deltas:
                yield charge.read(deltas)
        except BackendError as error:
            if not error.may_be_billed:
                charge.usage = charge.usage or NO_USAGE
            raise
        finally:
            # A server that does not say what it took, or an answer that was left early, may have cost it all.
            self._purse.settle(charge.reserved, self._counted(charge))

    async def leave(self, agent: str) -> None:
        await self._backend.leave(agent)

    async def aclose(self) -> None:
        await self._backend.aclose()

    def _counted(self, charge: "_Charge") -> Usage:
        """What a request is taken to have cost. A part that the server does not tell, or not as it can be, counts at
        its worst."""
        told, worst = charge.usage, charge.worst
        if told is None or told is NO_USAGE:
            return worst if told is None else told
        given = told.input if 0 < told.input <= worst.input + _UNSEEN else worst.input
        said = told.output if 0 < told.output <= worst.output + _UNSEEN else worst.output
        self._unseen = max(self._unseen, given - worst.input + charge.unseen)
        return Usage(given, min(told.cached, given), said)

    def _worst(self, request: Request) -> Usage:
        """A token is at least a byte; an answer is as long as it may get. No prompt is longer than a window that the
        server told: it would refuse it."""
        window, messages = self.traits.context_tokens, request.messages
        given = self._shared_bytes(request) + sum(map(_bytes, messages)) + _TEMPLATE * (len(messages) + 1)
        longest = _longest_answer(request.sampling, window or self._window or _LONGEST_ANSWER)
        return Usage((given if window is None else min(given, window)) + self._unseen, 0, longest)

    def _shared_bytes(self, request: Request) -> int:
        """Of the prompt and the schema, which most requests of a run have in common."""
        if self._prompt is None or self._prompt[0] is not request.prompt:
            self._prompt = request.prompt, _prompt_bytes(request.prompt)
        if self._schema[0] is not request.answer_schema:
            self._schema = request.answer_schema, _length(str(request.answer_schema))
        return self._prompt[1] + self._schema[1]


class _Charge:
    """One request, as it is paid for."""

    __slots__ = ("_purse", "reserved", "unseen", "usage", "worst")

    def __init__(self, purse: BudgetPool, worst: Usage, unseen: int, reserved: Reservation) -> None:
        """`unseen`: the part of the worst that the server uses beyond what it is sent."""
        self._purse = purse
        self.worst = worst
        self.unseen = unseen
        self.reserved = reserved
        self.usage: Usage | None = None
        """As the server tells it; NO_USAGE where nothing was billed."""

    def again(self) -> bool:
        reserved = self._purse.budget.reserve(self.worst, self.reserved.price)
        if reserved is None:
            return False
        self._purse.settle(self.reserved, self.worst)
        self.reserved = reserved
        return True

    async def read(self, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        async for delta in deltas:
            if isinstance(delta, Finished) and delta.usage != NO_USAGE:
                self.usage = delta.usage
            yield delta


def _longest_answer(sampling: Sampling, otherwise: int) -> int:
    """Tokens of all answers to one request."""
    extra = sampling.extra
    if not extra:
        return sampling.max_tokens or otherwise
    named = (sampling.max_tokens, extra.get("max_tokens"), extra.get("max_completion_tokens"))
    copies = (1, extra.get("n"), extra.get("best_of"))
    return (max(map(_positive, named)) or otherwise) * max(map(_positive, copies))


def _positive(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _prompt_bytes(prompt: Prompt) -> int:
    tools = sum(_length(tool.name + tool.description + str(tool.parameters)) for tool in prompt.tools)
    return _length(prompt.system) + tools + _TEMPLATE * len(prompt.tools)


def _bytes(message: Message) -> int:
    match message:
        case User(text):
            return _length(text)
        case Assistant():
            parts = [message.text, *(call.name + call.arguments for call in message.calls)]
            parts += [thought.text + thought.signature + thought.redacted for thought in message.thoughts]
            return sum(map(_length, parts))
        case ToolResults(results):
            return sum(_length(result.content) for result in results)


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


_AHEAD = 64
"""Parts of what is left of the budget, one of which is accounted for ahead: not every request waits for the disk. It is
what a kill costs beside the requests in flight."""
_UNLIMITED = float("inf")


@asynccontextmanager
async def keep_account(purse: BudgetPool, store: Store) -> AsyncIterator[None]:
    """Nothing is sent that the store does not account for, for as long as the block runs. After a kill all that it
    accounts for counts as spent; at a regular end it is what was spent. Raises StoreError."""
    account, asked = _KeptAccount(purse, store), asyncio.Event()
    purse.share(asked.set, asks_again=True)
    keeping = asyncio.get_running_loop().create_task(account.keep(asked))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await account.close()


class _KeptAccount:
    """What the store accounts for, raised as it is needed."""

    def __init__(self, purse: BudgetPool, store: Store) -> None:
        self._purse = purse
        self._store = store
        self._budget = purse.budget
        self._kept = Amount()

    async def keep(self, asked: asyncio.Event) -> None:
        while True:  # until it is cancelled with the run
            await asked.wait()
            asked.clear()
            needs = self._purse.needs
            wanted, _ = lease(self._budget.most, Amount(), (), self._budget.taken_here, needs, _AHEAD)
            raised = self._limited(wanted).or_more(self._kept)
            if raised == self._kept:
                continue  # who waits does so for requests under way
            try:
                await self._write(raised)
            except StoreError as error:
                self._purse.fail(error)
                return
            self._kept = raised
            self._purse.lease(raised, Amount())

    async def close(self) -> None:
        await self._write(self._budget.taken_here)

    def _limited(self, amount: Amount) -> Amount:
        """Without what there is no limit of: nobody waits for that."""
        most = self._budget.most
        return Amount(0 if most.tokens == _UNLIMITED else amount.tokens, 0 if most.usd == _UNLIMITED else amount.usd)

    async def _write(self, amount: Amount) -> None:
        most = self._budget.most
        await self._store.keep_account(
            Account(
                None if most.tokens == _UNLIMITED else amount.tokens,
                None if most.usd == _UNLIMITED else amount.usd,
            )
        )
