"""Budget of a run in the engine: a pool that requests draw from, a backend that counts them, and a durable account.

With a checkpoint, what a request may cost is durable before the request is sent."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from ..core.errors import BackendError, ErrorKind, StoreError
from ..core.messages import Assistant, Message, Prompt, ToolResults, User
from ..core.options.price import FREE, Price
from ..core.protocols import Account, Backend, Store, Traits
from ..core.requests import NO_USAGE, Delta, Finished, Request, Usage
from ..core.schema import JsonSchema
from ..media.image_files import images_in
from ..schedule.budget import Amount, Budget, Reservation
from ..schedule.fair_share import lease

_MAX_ANSWER_TOKENS = 32_768
"""Assumed length of an answer if neither max_tokens nor the context window limits it."""
_TEMPLATE_TOKENS = 64
"""Tokens that a chat template may add to a message."""
_MAX_HIDDEN_TOKENS = 65_536
"""Tokens that a server may use beyond what it was sent, for instructions of its own. Higher reports are ignored."""

_HOUR = "'1h'"
"""In the extra fields of requests that have their prompts kept in the provider's cache for an hour."""

PriceOf = Callable[[str], Price]


class BudgetPool:
    """A budget with waiters. A request that does not fit now waits until requests in flight are settled."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._needs: dict[int, Amount] = {}
        """Amounts that waiters need, by waiter."""
        self._numbers = itertools.count()
        self._request_lease: Callable[[], None] | None = None
        self._requests_again = False
        self._broken: StoreError | None = None

    @property
    def needs(self) -> list[Amount]:
        """Amounts that waiters need."""
        return list(self._needs.values())

    def require_leases(self, request_lease: Callable[[], None], *, requests_again: bool = False) -> None:
        """From now on, what is spent has to be leased first: other workers share the budget, or an account is kept.
        `request_lease` is called when a request begins to wait; with `requests_again`, also whenever it was woken in
        vain."""
        self._request_lease, self._requests_again = request_lease, requests_again
        self.budget.lease(Amount())

    def lease(self, allowed: Amount, elsewhere: Amount) -> None:
        """Allows this process to spend `allowed` in total; other processes have spent `elsewhere`."""
        self.budget.lease(allowed)
        self.budget.set_spent_elsewhere(elsewhere)
        self._wake()

    def fail(self, error: StoreError) -> None:
        """Nothing can be leased any more: requests that wait fail with this error."""
        self._broken = error
        self._wake()

    async def reserve(self, worst: Usage, price: Price) -> Reservation:
        """Waits until the request fits. Raises BackendError if it never can, and StoreError if the account fails."""
        return self.budget.reserve(worst, price) or await self._wait(worst, price)

    def settle(self, reserved: Reservation, usage: Usage) -> None:
        self.budget.settle(reserved, usage)
        self._wake()

    async def _wait(self, worst: Usage, price: Price) -> Reservation:
        number, reserved, request_lease = next(self._numbers), None, self._request_lease
        self._needs[number] = Amount.worst(worst, price)
        try:
            while reserved is None:
                if self._broken is not None:
                    raise self._broken
                if self.budget.can_never_fit(worst, price):
                    raise BackendError(ErrorKind.BUDGET, self._exhausted(worst))
                if request_lease is not None:
                    request_lease()
                    # Once by default: other workers may hold the budget for a while.
                    request_lease = self._request_lease if self._requests_again else None
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

    def _exhausted(self, worst: Usage) -> str:
        spent = f"{self.budget.tokens:,} tokens" + (f" (${self.budget.usd:.4f})" if self.budget.usd else "")
        needed = worst.input + worst.output
        return (
            f"The budget is used up: {spent} were spent, and this request may take {needed:,}, {worst.output:,} "
            "of them for its answer (max_tokens). Results so far are kept."
        )


class BudgetedBackend:
    """Backend whose requests count against a budget. Requests that can never fit fail with a budget error. Everything
    that may have been billed counts: with the usage that the server reports, or with its worst case."""

    def __init__(
        self, backend: Backend, pool: BudgetPool, price: PriceOf | None = None, window: int | None = None
    ) -> None:
        """`price`: of each model; None if no price is needed. `window`: the user's value of the context window, used if
        the server reports none."""
        self._backend = backend
        self._pool = pool
        self._price = price
        self._window = window
        self._prompt: tuple[Prompt, int] | None = None
        self._schema: tuple[JsonSchema | None, int] = (None, 0)
        self._hidden = 0
        """Tokens that the server uses beyond what it is sent, as observed."""

    @property
    def traits(self) -> Traits:
        return self._backend.traits

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        price = FREE if self._price is None else self._price(request.model)
        worst = self._worst(request, price)
        charge = _Charge(self._pool, worst, self._hidden, await self._pool.reserve(worst, price))
        try:
            async with self._backend.stream(replace(request, charge=charge)) as deltas:
                yield charge.read(deltas)
        except BackendError as error:
            if not error.may_be_billed:
                charge.usage = charge.usage or NO_USAGE
            raise
        finally:
            # Without reported usage, or if the answer was abandoned, the request may have cost its worst case.
            self._pool.settle(charge.reserved, self._counted(charge))

    async def leave(self, agent: str) -> None:
        await self._backend.leave(agent)

    async def aclose(self) -> None:
        await self._backend.aclose()

    def _counted(self, charge: "_Charge") -> Usage:
        """The usage that counts for a request. A number that the server does not report, or that is impossible, counts
        with its worst case."""
        reported, worst = charge.usage, charge.worst
        if reported is None or reported is NO_USAGE:
            return worst if reported is None else reported
        is_known = 0 < reported.input <= worst.input + _MAX_HIDDEN_TOKENS
        input_tokens = reported.input if is_known else worst.input
        output_tokens = reported.output if 0 < reported.output <= worst.output + _MAX_HIDDEN_TOKENS else worst.output
        self._hidden = max(self._hidden, input_tokens - worst.input + charge.hidden)
        cached = min(reported.cached, input_tokens)
        if not is_known:
            fresh = input_tokens - cached
            return Usage(input_tokens, cached, output_tokens, min(worst.written, fresh), min(worst.written_hour, fresh))
        hour = min(reported.written_hour, input_tokens - cached)
        return Usage(input_tokens, cached, output_tokens, min(reported.written, input_tokens - cached - hour), hour)

    def _worst(self, request: Request, price: Price) -> Usage:
        """Worst case of a request: every byte a token, all of them written to the cache if that costs more, and the
        longest possible answer. A prompt is no longer than the
        window that the server reports, or the server would reject it."""
        window, messages = self.traits.context_tokens, request.messages
        size = self._shared_bytes(request) + sum(map(_bytes, messages)) + _TEMPLATE_TOKENS * (len(messages) + 1)
        size += self.traits.image_tokens * sum(len(images_in(message)) for message in messages)
        longest = request.sampling.max_tokens or window or self._window or _MAX_ANSWER_TOKENS
        prompt = (size if window is None else min(size, window)) + self._hidden
        return price.worst(prompt, longest, for_hour=_HOUR in str(request.sampling.extra))

    def _shared_bytes(self, request: Request) -> int:
        """Bytes of the prompt and the schema, which most requests of a run share."""
        if self._prompt is None or self._prompt[0] is not request.prompt:
            self._prompt = request.prompt, _prompt_bytes(request.prompt)
        if self._schema[0] is not request.answer_schema:
            self._schema = request.answer_schema, _length(str(request.answer_schema))
        return self._prompt[1] + self._schema[1]


class _Charge:
    """Charge of one request."""

    __slots__ = ("_pool", "hidden", "reserved", "usage", "worst")

    def __init__(self, pool: BudgetPool, worst: Usage, hidden: int, reserved: Reservation) -> None:
        """`hidden`: tokens of the worst case that the server uses beyond what it is sent."""
        self._pool = pool
        self.worst = worst
        self.hidden = hidden
        self.reserved = reserved
        self.usage: Usage | None = None
        """As the server reports it; NO_USAGE if nothing was billed."""

    def again(self) -> bool:
        reserved = self._pool.budget.reserve(self.worst, self.reserved.price)
        if reserved is None:
            return False
        self._pool.settle(self.reserved, self.worst)
        self.reserved = reserved
        return True

    async def read(self, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        async for delta in deltas:
            if isinstance(delta, Finished) and delta.usage != NO_USAGE:
                self.usage = delta.usage
            yield delta


def _prompt_bytes(prompt: Prompt) -> int:
    tools = sum(_length(tool.name + tool.description + str(tool.parameters)) for tool in prompt.tools)
    return _length(prompt.system) + tools + _TEMPLATE_TOKENS * len(prompt.tools)


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


_AHEAD_DIVISOR = 64
"""One such part of the remaining budget is accounted for ahead, so that not every request waits for the disk. It is
what a kill costs in addition to the requests in flight."""
_UNLIMITED = float("inf")


@asynccontextmanager
async def persist_account(pool: BudgetPool, store: Store) -> AsyncIterator[None]:
    """While the block runs, no request is sent that the store does not account for. After a kill, everything accounted
    for counts as spent; at a regular end, the account is what was spent. Raises StoreError."""
    account, requested = _KeptAccount(pool, store), asyncio.Event()
    pool.require_leases(requested.set, requests_again=True)
    keeping = asyncio.get_running_loop().create_task(account.keep(requested))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await account.close()


class _KeptAccount:
    """The account in the store, raised as needed."""

    def __init__(self, pool: BudgetPool, store: Store) -> None:
        self._pool = pool
        self._store = store
        self._budget = pool.budget
        self._kept = Amount()

    async def keep(self, requested: asyncio.Event) -> None:
        while True:  # until it is cancelled with the run
            await requested.wait()
            requested.clear()
            needs = self._pool.needs
            wanted, _ = lease(self._budget.limit, Amount(), (), self._budget.committed_here, needs, _AHEAD_DIVISOR)
            raised = self._limited(wanted).maximum(self._kept)
            if raised == self._kept:
                continue  # waiters wait for requests in flight
            try:
                await self._write(raised)
            except StoreError as error:
                self._pool.fail(error)
                return
            self._kept = raised
            self._pool.lease(raised, Amount())

    async def close(self) -> None:
        await self._write(self._budget.committed_here)

    def _limited(self, amount: Amount) -> Amount:
        """The amount without what is unlimited."""
        limit = self._budget.limit
        return Amount(0 if limit.tokens == _UNLIMITED else amount.tokens, 0 if limit.usd == _UNLIMITED else amount.usd)

    async def _write(self, amount: Amount) -> None:
        limit = self._budget.limit
        await self._store.save_account(
            Account(
                None if limit.tokens == _UNLIMITED else amount.tokens,
                None if limit.usd == _UNLIMITED else amount.usd,
            )
        )
