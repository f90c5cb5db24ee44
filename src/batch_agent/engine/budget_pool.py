"""Budget of a run in the engine: a pool that requests draw from, and a backend that counts and limits them."""

import asyncio
import itertools
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from ..core.errors import AnswerLimitChanged, BackendError, ErrorKind, StoreError
from ..core.images import ImageRef
from ..core.images.token_estimate import estimated_tokens
from ..core.messages import Assistant, Message, Prompt, ToolResults, User
from ..core.options.price import FREE, Price
from ..core.protocols.backend import Backend, Traits
from ..core.protocols.store import EarlierSubmission
from ..core.requests import NO_USAGE, Delta, Finished, Lane, Request, Sampling, Usage
from ..core.schema import JsonSchema
from ..media.image_files import images_in
from ..schedule.budget import Amount, AnswerLimits, Budget, Reservation

_TEMPLATE_TOKENS = 64
"""Tokens that a chat template may add to a message."""
_MAX_HIDDEN_TOKENS = 65_536
"""Tokens that a server may add to a prompt, such as instructions of its own. Higher reports are ignored."""

_ANSWER_PART = 8
"""Divisor: this part of the window is reserved for the answer, even if the prompt may be as long as the window."""
_LEAST_ANSWER = 256
"""The lowest limit that is tried on a server that refuses higher ones."""
_SCHEMA_BYTES_PER_TOKEN = 2
_TURNS_APART = 8
"""Turns whose answer lengths are learned separately: tool calls are shorter than final answers."""
_MAX_CONTEXTS = 10_000
"""Agents whose last prompt is remembered; the oldest are forgotten."""
_GROWTH = 2
"""Factor by which the limit of an answer that was cut grows."""
_ABOUT_LIMIT = re.compile(r"max(imum)?[ _](\w+[ _])?tokens", re.IGNORECASE)
_HOUR = "'1h'"
"""Extra field of requests whose prompts the provider caches for an hour."""

PriceOf = Callable[[str], Price]


class BudgetPool:
    """Budget with waiters: a request that does not fit waits until requests in flight are settled."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._needs: dict[int, Amount] = {}
        """Amount that each waiter needs."""
        self._numbers = itertools.count()
        self._request_lease: Callable[[], None] | None = None
        self._requests_again = False
        self.workers = 1
        """Number of workers that share the budget."""
        self._broken: StoreError | None = None

    @property
    def waiting(self) -> int:
        """Number of requests that wait until others are settled."""
        return len(self._waiting)

    @property
    def needs(self) -> list[Amount]:
        """Amounts that waiters need."""
        return list(self._needs.values())

    def require_leases(self, request_lease: Callable[[], None], *, requests_again: bool = False) -> None:
        """Requires a lease for everything that is spent from now on, because other workers share the budget or an
        account is kept. `request_lease` is called when a request begins to wait; with `requests_again`, also whenever
        it wakes and still does not fit."""
        self._request_lease, self._requests_again = request_lease, requests_again
        self.budget.lease(Amount())

    def lease(self, allowed: Amount, elsewhere: Amount, workers: int = 1) -> None:
        """Allows this process to spend `allowed` in total; other processes have spent `elsewhere`."""
        self.workers = workers
        self.budget.lease(allowed)
        self.budget.set_spent_elsewhere(elsewhere)
        self._wake()

    def set_max_usd(self, max_usd: float) -> None:
        """Changes the budget in dollars. Waiting requests are tried again, and fail if they can never fit now."""
        self.budget.set_max_usd(max_usd)
        self._wake()

    def fail(self, error: StoreError) -> None:
        """Fails the waiting requests with this error, because nothing can be leased any more."""
        self._broken = error
        self._wake()

    async def reserve(self, worst: Callable[[], Usage], price: Price) -> Reservation:
        """Waits until the request fits. `worst`: returns its worst case, which may change while it waits. Raises
        BackendError if it can never fit, and StoreError if the account fails."""
        first = worst()
        return self.budget.reserve(first, price) or await self._wait(first, worst, price)

    def settle(self, reserved: Reservation, usage: Usage) -> None:
        self.budget.settle(reserved, usage)
        self._wake()

    async def _wait(self, needed: Usage, worst: Callable[[], Usage], price: Price) -> Reservation:
        number, reserved, request_lease = next(self._numbers), None, self._request_lease
        try:
            while reserved is None:
                self._needs[number] = Amount.worst(needed, price)
                if self._broken is not None:
                    raise self._broken
                if self.budget.can_never_fit(needed, price):
                    raise BackendError(ErrorKind.BUDGET, self._exhausted(needed))
                if request_lease is not None:
                    request_lease()
                    # Once by default: other workers may hold the budget for a while.
                    request_lease = self._request_lease if self._requests_again else None
                settled = asyncio.get_running_loop().create_future()
                self._waiting.append(settled)
                await settled
                needed = worst()
                reserved = self.budget.reserve(needed, price)
        finally:
            self._needs.pop(number, None)
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
    that may have been billed counts: with the usage that the server reports, or with its worst case.

    Requests without `max_tokens` are sent with a limit that `AnswerLimits` derives. If it cuts an answer, or the server
    refuses it, the request fails with AnswerLimitChanged, and the agent's next one has another limit."""

    def __init__(
        self,
        backend: Backend,
        pool: BudgetPool,
        price: PriceOf | None = None,
        window: int | None = None,
        in_flight: int = 1,
        submitted: Callable[[Request], EarlierSubmission | None] | None = None,
    ) -> None:
        """`price`: returns the price of a model; None if no price is needed. `window`: context window given by the
        user, for a server that reports none. `in_flight`: expected number of requests in flight. `submitted`: finds a
        request that was submitted in an earlier batch."""
        self._backend = backend
        self._pool = pool
        self._price = price
        self._window = window
        self._in_flight = in_flight
        self._submitted = submitted
        self._prompt: tuple[Prompt, int] | None = None
        self._schema: tuple[JsonSchema | None, int] = (None, 0)
        self._hidden = 0
        """Observed tokens that the server adds to what it is sent."""
        self._reduces_flex = False
        """Whether the last flex request was billed at the reduced price. Otherwise the full price is reserved."""
        self._limits = [AnswerLimits() for _ in range(_TURNS_APART)]
        self._highest_limit = float("inf")
        """Highest limit that the server accepts."""
        self._contexts = _Contexts(backend.traits)
        self._next_limits: dict[str, int] = {}
        """Next limit of each agent whose last one did not fit."""
        self._limited: tuple[Sampling, dict[int, Sampling]] | None = None
        """The last sampling without max_tokens, and its copies with each limit that was sent."""

    @property
    def traits(self) -> Traits:
        return self._backend.traits

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        price = self.price(request.model)
        earlier = None if self._submitted is None else self._submitted(request)
        if earlier is not None and earlier.had_ended:
            async with self._backend.stream(request) as deltas:
                yield deltas  # the account of the earlier process has it
            return
        if earlier is not None and earlier.line.input:
            reserved = self._pool.budget.take_over(_earlier_worst(earlier, request), earlier.line.usd, price)
        else:
            reserved = await self._pool.reserve(lambda: self.worst(request, price), price)
        is_derived, limit = request.sampling.max_tokens is None, reserved.worst.output
        sampling = self._with_limit(request.sampling, limit) if is_derived else request.sampling
        charge = _Charge(self._pool, self._hidden, reserved)
        try:
            async with self._backend.stream(replace(request, sampling=sampling, charge=charge)) as deltas:
                yield charge.read(deltas)
            if is_derived:
                self._learn(request, charge, limit)
        except BackendError as error:
            if not error.may_be_billed:
                charge.usage = charge.usage or NO_USAGE
                if is_derived:
                    self._lower(request, error, limit)
            raise
        finally:
            # Without reported usage, or if the answer was abandoned, the request may have cost its worst case.
            counted = self._counted(charge)
            self._pool.settle(charge.reserved, counted)
            if charge.usage is not None and charge.usage is not NO_USAGE:
                if request.agent:
                    self._contexts.remember(request, counted.input)
                if request.lane == "flex":
                    self._reduces_flex = counted.lane == "flex"

    async def leave(self, agent: str) -> None:
        await self._backend.leave(agent)

    async def aclose(self) -> None:
        await self._backend.aclose()

    def _counted(self, charge: "_Charge") -> Usage:
        """The usage to count for a request. A number that the server does not report, or that is impossible, is
        replaced by its worst case."""
        reported, worst = charge.usage, charge.reserved.worst
        if reported is None or reported is NO_USAGE:
            return worst if reported is None else reported
        is_known = 0 < reported.input <= worst.input + _MAX_HIDDEN_TOKENS
        input_tokens = reported.input if is_known else worst.input
        output_tokens = reported.output if 0 < reported.output <= worst.output + _MAX_HIDDEN_TOKENS else worst.output
        self._hidden = max(self._hidden, input_tokens - worst.input + charge.hidden)
        cached = min(reported.cached, input_tokens)
        if not is_known:
            fresh = input_tokens - cached
            minutes, hour = min(worst.written, fresh), min(worst.written_hour, fresh)
        else:
            hour = min(reported.written_hour, input_tokens - cached)
            minutes = min(reported.written, input_tokens - cached - hour)
        return Usage(input_tokens, cached, output_tokens, minutes, hour).in_lane(reported.lane)

    def price(self, model: str) -> Price:
        return FREE if self._price is None else self._price(model)

    def worst(self, request: Request, price: Price) -> Usage:
        """Worst case of a request: each byte that the agent has not sent before is a token, all tokens are written to
        the cache if that costs more, and the answer is as long as allowed. A prompt never exceeds the window that the
        server reports: the server would reject it."""
        window = self.traits.context_tokens
        size = self._contexts.size(request)
        if size is None:
            size = self._prompt_size(request.prompt) + sum(self._contexts.sizes(request.messages))
        size += self._schema_size(request.answer_schema)
        prompt = (size if window is None else min(size, window)) + self._hidden
        answer = request.sampling.max_tokens or self._derived_limit(request, price, prompt)
        return price.worst(prompt, answer, for_hour=_HOUR in str(request.sampling.extra), lane=self._lane(request))

    def _lane(self, request: Request) -> Lane:
        """The lane whose price the request may be billed at."""
        return "standard" if request.lane == "flex" and not self._reduces_flex else request.lane

    def _derived_limit(self, request: Request, price: Price, prompt: int) -> int:
        if (limit := self._next_limits.get(request.agent)) is not None:
            return limit
        budget, window = self._pool.budget, self.traits.context_tokens or self._window
        requests = max(self._in_flight, budget.in_flight + 1) * self._pool.workers
        affordable = budget.answer_tokens(requests, price.of_answer(prompt, self._lane(request)))
        room = self._highest_limit
        if window is not None:
            room = min(room, max(window - prompt, window // _ANSWER_PART))
        return self._of_turn(request).limit(
            affordable, self._schema_size(request.answer_schema) // _SCHEMA_BYTES_PER_TOKEN, room
        )

    def _of_turn(self, request: Request) -> AnswerLimits:
        return self._limits[min(request.turn, _TURNS_APART - 1)]

    def _with_limit(self, sampling: Sampling, limit: int) -> Sampling:
        if self._limited is None or self._limited[0] is not sampling:
            self._limited = sampling, {}
        known = self._limited[1]
        if limit not in known:
            known[limit] = replace(sampling, max_tokens=limit)
        return known[limit]

    def _learn(self, request: Request, charge: "_Charge", limit: int) -> None:
        """Learns from an answer. Raises AnswerLimitChanged if the derived limit has cut it."""
        self._next_limits.pop(request.agent, None)
        used = charge.usage or charge.reserved.worst
        self._of_turn(request).observe(used.output)
        window = self.traits.context_tokens or self._window
        room = self._highest_limit if window is None else min(self._highest_limit, window - used.input)
        higher = int(min(_GROWTH * limit, room))
        if charge.is_cut and request.agent and used.output >= limit and higher > limit:
            self._next_limits[request.agent] = higher
            raise AnswerLimitChanged(
                ErrorKind.TRUNCATED,
                f"The answer was cut at {limit:,} tokens, a limit derived from the budget. It is requested again with "
                f"{higher:,}.",
            )

    def _lower(self, request: Request, error: BackendError, limit: int) -> None:
        """Raises AnswerLimitChanged if the server has refused the derived limit."""
        is_overflow = error.kind is ErrorKind.CONTEXT_OVERFLOW
        lower = _LEAST_ANSWER if is_overflow else limit // 2
        if lower >= limit or lower < _LEAST_ANSWER or not request.agent:
            return
        if not (is_overflow or (error.kind is ErrorKind.BAD_REQUEST and _ABOUT_LIMIT.search(str(error)))):
            return
        if not is_overflow:
            self._highest_limit = min(self._highest_limit, lower)
        self._next_limits[request.agent] = lower
        raise AnswerLimitChanged(
            error.kind, f"The server refused a limit of {limit:,} tokens, derived from the budget: {error}"
        ) from error

    def _prompt_size(self, prompt: Prompt) -> int:
        """Bytes of a prompt, cached for the one that most requests of a run share."""
        if self._prompt is None or self._prompt[0] is not prompt:
            self._prompt = prompt, _prompt_bytes(prompt)
        return self._prompt[1]

    def _schema_size(self, schema: JsonSchema | None) -> int:
        if self._schema[0] is not schema:
            self._schema = schema, _length(str(schema))
        return self._schema[1]


class _Contexts:
    """Measured sizes of the agents' last prompts. The next prompt of an agent takes that size plus at most the bytes of
    its new messages. An agent whose earlier messages have changed is treated as unknown."""

    def __init__(self, traits: Traits) -> None:
        self._traits = traits
        self._known: dict[str, tuple[Prompt, int, int, int]] = {}
        """Prompt, number of messages, their bytes, and tokens of it all, by agent."""

    def sizes(self, messages: Iterable[Message]) -> list[int]:
        """Most tokens of each message."""
        return [
            _bytes(message) + (self._of_images(images) if (images := images_in(message)) else 0) for message in messages
        ]

    def _of_images(self, images: Iterable[ImageRef]) -> int:
        """The most tokens that the service can count for an image. By Gemini's formula, a very large image has more."""
        traits = self._traits
        return sum(max(traits.image_tokens, estimated_tokens(each, traits.model, traits.name)) for each in images)

    def remember(self, request: Request, tokens: int) -> None:
        self._known.pop(request.agent, None)
        if len(self._known) >= _MAX_CONTEXTS:
            del self._known[next(iter(self._known))]
        size = sum(self.sizes(request.messages))
        self._known[request.agent] = request.prompt, len(request.messages), size, tokens

    def size(self, request: Request) -> int | None:
        """Upper bound of the tokens of a prompt; None if it is unknown."""
        if (known := self._known.get(request.agent)) is None:
            return None
        prompt, count, size, tokens = known
        sizes = self.sizes(request.messages)
        if request.prompt is not prompt or len(sizes) < count or sum(sizes[:count]) != size:
            return None
        return tokens + sum(sizes[count:])


class _Charge:
    """Charge of one request."""

    __slots__ = ("_pool", "hidden", "is_cut", "reserved", "usage")

    def __init__(self, pool: BudgetPool, hidden: int, reserved: Reservation) -> None:
        """`hidden`: tokens of the worst case that are for what the server adds to the request."""
        self._pool = pool
        self.hidden = hidden
        self.is_cut = False
        self.reserved = reserved
        self.usage: Usage | None = None
        """Usage as the server reports it; NO_USAGE if nothing was billed."""

    @property
    def worst(self) -> Usage:
        return self.reserved.worst

    @property
    def usd(self) -> float:
        return self.reserved.usd

    def again(self) -> bool:
        reserved = self._pool.budget.reserve(self.reserved.worst, self.reserved.price)
        if reserved is None:
            return False
        self._pool.settle(self.reserved, self.reserved.worst)
        self.reserved = reserved
        return True

    async def read(self, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        async for delta in deltas:
            if isinstance(delta, Finished):
                self.is_cut = delta.reason == "length"
                self.usage = delta.usage if delta.usage != NO_USAGE else self.usage
            yield delta


def _earlier_worst(earlier: EarlierSubmission, request: Request) -> Usage:
    return Usage(earlier.line.input, 0, earlier.line.output).in_lane(request.lane)


def _prompt_bytes(prompt: Prompt) -> int:
    tools = sum(_length(tool.name + tool.description + str(tool.parameters)) for tool in prompt.tools)
    return _length(prompt.system) + tools + _TEMPLATE_TOKENS * (len(prompt.tools) + 1)


def _bytes(message: Message) -> int:
    """Bytes of a message, and what the chat template may add."""
    match message:
        case User(text):
            return _length(text) + _TEMPLATE_TOKENS
        case Assistant():
            parts = [message.text, *(call.name + call.arguments for call in message.calls)]
            parts += [thought.text + thought.signature + thought.redacted for thought in message.thoughts]
            return sum(map(_length, parts)) + _TEMPLATE_TOKENS
        case ToolResults(results):
            return sum(_length(result.content) for result in results) + _TEMPLATE_TOKENS


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
