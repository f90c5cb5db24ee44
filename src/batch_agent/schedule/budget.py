"""Budget of tokens and dollars. The worst case of a request is reserved before it is sent and its actual usage settled
afterwards, so that requests in flight can never exceed the budget together.

What an answer may take is most of a worst case. Where the user gave no `max_tokens`, `AnswerLimits` derives a limit
that is sent with the request, so that the budget pays many requests at once."""

from collections import deque

from ..core.fast_dataclass import dataclass
from ..core.options.price import Price
from ..core.requests import Usage

_UNLIMITED = float("inf")


@dataclass(frozen=True, slots=True)
class Amount:
    """Amount of tokens and dollars."""

    tokens: float = 0
    usd: float = 0.0

    @classmethod
    def worst(cls, usage: Usage, price: Price) -> "Amount":
        """The most that a request with the worst case `usage` can take."""
        return cls(usage.input + usage.output, price.at_most(usage))

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.tokens + other.tokens, self.usd + other.usd)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.tokens - other.tokens, self.usd - other.usd)

    def fits(self, limit: "Amount") -> bool:
        return self.tokens <= limit.tokens and self.usd <= limit.usd

    def maximum(self, other: "Amount") -> "Amount":
        return Amount(max(self.tokens, other.tokens), max(self.usd, other.usd))

    def minimum(self, other: "Amount") -> "Amount":
        return Amount(min(self.tokens, other.tokens), min(self.usd, other.usd))

    def fraction(self, parts: int) -> "Amount":
        """One of `parts` equal parts. What is unlimited becomes zero, because it need not be divided."""
        tokens = 0 if self.tokens == _UNLIMITED else max(0, int(self.tokens) // parts)
        return Amount(tokens, 0.0 if self.usd == _UNLIMITED else max(0.0, self.usd / parts))


@dataclass(frozen=True, slots=True)
class Reservation:
    """Worst case of one request, counted against the budget until it is settled."""

    worst: Usage
    usd: float
    price: Price

    @property
    def tokens(self) -> int:
        return self.worst.input + self.worst.output


class Budget:
    """Budget of all models of a run, each at its own price. Workers that share a budget each have an account of their
    own and spend no more than they have leased."""

    def __init__(self, *, max_tokens: int | None = None, max_usd: float | None = None) -> None:
        self.limit = Amount(
            _UNLIMITED if max_tokens is None else max_tokens, _UNLIMITED if max_usd is None else max_usd
        )
        self._leased = Amount(_UNLIMITED, _UNLIMITED)
        """What this worker has leased: the most that it may spend and reserve."""
        self._allowed = self.limit
        """The leased amount, within the limit."""
        self._elsewhere = Amount()
        self.in_flight = 0
        """Requests whose worst case is reserved."""
        self._reserved_tokens = 0
        self._reserved_usd = 0.0
        self._tokens = 0
        self._usd = 0.0

    @property
    def tokens(self) -> int:
        """Tokens spent by all workers, as far as this one knows."""
        return self._tokens + int(self._elsewhere.tokens)

    @property
    def usd(self) -> float:
        return self._usd + self._elsewhere.usd

    @property
    def spent_here(self) -> Amount:
        return Amount(self._tokens, self._usd)

    @property
    def committed_here(self) -> Amount:
        """Spent and reserved by this worker."""
        return Amount(self._tokens + self._reserved_tokens, self._usd + self._reserved_usd)

    def lease(self, allowed: Amount) -> None:
        """Allows this worker to spend and reserve `allowed` in total. What is unlimited stays unlimited."""
        self._leased = Amount(
            _UNLIMITED if self.limit.tokens == _UNLIMITED else allowed.tokens,
            _UNLIMITED if self.limit.usd == _UNLIMITED else allowed.usd,
        )
        self._allowed = self._leased.minimum(self.limit)

    def set_max_usd(self, max_usd: float) -> None:
        """Changes the limit in dollars. Amounts leased beyond a lower limit may no longer be spent."""
        self.limit = Amount(self.limit.tokens, max_usd)
        self._allowed = self._leased.minimum(self.limit)

    def set_spent_elsewhere(self, elsewhere: Amount) -> None:
        """Records what other workers and earlier runs have spent at least."""
        self._elsewhere = elsewhere

    def reserve(self, worst: Usage, price: Price) -> Reservation | None:
        """Reserves the worst case of a request. None if it does not fit now; `can_never_fit` tells whether waiting can
        help."""
        wanted = Reservation(worst, price.at_most(worst), price)
        if (
            self._tokens + self._reserved_tokens + wanted.tokens > self._allowed.tokens
            or self._usd + self._reserved_usd + wanted.usd > self._allowed.usd
        ):
            return None
        self.in_flight += 1
        self._reserved_tokens += wanted.tokens
        self._reserved_usd += wanted.usd
        return wanted

    def take_over(self, worst: Usage, usd: float, price: Price) -> Reservation:
        """Takes over a reservation of an earlier process for the same request, which counts as spent. Settling it
        corrects what was spent."""
        taken = Reservation(worst, usd, price)
        self._tokens -= taken.tokens
        self._usd -= usd
        self.in_flight += 1
        self._reserved_tokens += taken.tokens
        self._reserved_usd += usd
        return taken

    def can_never_fit(self, worst: Usage, price: Price) -> bool:
        """Whether the request exceeds the budget even if all requests in flight cost nothing."""
        return not (self._elsewhere + (self.spent_here + Amount.worst(worst, price))).fits(self.limit)

    def answer_tokens(self, requests: int, price: float) -> float:
        """Tokens per answer such that `requests` answers take only a part of the remaining budget. `price`: of a
        token."""
        left = self.limit - (self._elsewhere + self.spent_here)
        tokens = min(left.tokens, left.usd / price if price else _UNLIMITED)
        return max(0.0, tokens) * _SHARE_IN_FLIGHT / requests

    def settle(self, reserved: Reservation, usage: Usage) -> None:
        self.in_flight -= 1
        self._reserved_tokens -= reserved.tokens
        self._reserved_usd = max(0.0, self._reserved_usd - reserved.usd) if self._reserved_tokens else 0.0
        self.spend(usage, reserved.price)

    def spend(self, usage: Usage, price: Price) -> None:
        """Counts one request."""
        self._tokens += usage.input + usage.output
        self._usd += price.of_request(usage)

    def add_earlier(self, amount: Amount) -> None:
        """Adds what earlier runs with the same checkpoint have spent."""
        self._tokens += int(amount.tokens)
        self._usd += amount.usd


_SHARE_IN_FLIGHT = 0.25
"""Share of the remaining budget that answers in flight may take together if all are as long as they may be."""
_FIRST_LIMIT = 1_024
"""Lowest limit before answers were seen."""
_HIGHEST_FIRST_LIMIT = 16_384
"""Highest limit that is sent unless an answer needs more: some models refuse a higher one."""
_LOWEST_LIMIT, _ROOMY_LIMIT = 64, 256
"""Lowest limits after that: in any case, and if the budget has room."""
_ENOUGH_ANSWERS = 8
_RECENT_ANSWERS = 256
_MARGIN, _MAX_MARGIN = 2, 8
"""Factors of a limit over the longest recent answer: the least, and the most if the budget has room."""
_STEP = 64


class AnswerLimits:
    """Limits of answers in a run without `max_tokens`. A limit is never below what recent answers needed; above that,
    it is as high as the budget allows without making requests wait for each other."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=_RECENT_ANSWERS)
        self._learned: int | None = None

    def limit(self, affordable: float, needed: int, room: float) -> int:
        """Limit of the next answer. `affordable`: tokens that the budget pays for each of many answers; `needed`:
        tokens that the output schema needs; `room`: those that fit into the context window behind the prompt."""
        if self._learned is None:
            lowest = max(_FIRST_LIMIT, needed)
            highest = max(_HIGHEST_FIRST_LIMIT, needed)
        else:
            lowest = max(_LOWEST_LIMIT, _MARGIN * self._learned)
            highest = max(_ROOMY_LIMIT, _MAX_MARGIN * self._learned)
        wanted = min(max(affordable, lowest), highest, room)
        # Few different limits: requests with the same one share their encoding.
        return max(1, int(wanted // _STEP * _STEP if wanted > _STEP else wanted))

    def observe(self, output: int) -> None:
        """Records the tokens of an answer, which are a lower bound if it was cut."""
        self._recent.append(output)
        if len(self._recent) >= _ENOUGH_ANSWERS or output >= _FIRST_LIMIT:
            self._learned = max(self._recent)
