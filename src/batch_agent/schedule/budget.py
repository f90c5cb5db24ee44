"""What a run may spend. The worst case is reserved before a request goes out, and what it came to is settled after, so
that no number of requests in flight can spend more than there is."""

from ..core.fast_dataclass import dataclass
from ..core.requests import Usage

_UNLIMITED = float("inf")


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a token."""

    input: float
    cached: float
    output: float

    def of(self, usage: Usage) -> float:
        fresh = usage.input - usage.cached
        return fresh * self.input + usage.cached * self.cached + usage.output * self.output


FREE = Price(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Amount:
    """Of both that a budget counts."""

    tokens: float = 0
    usd: float = 0.0

    @classmethod
    def of(cls, usage: Usage, price: Price) -> "Amount":
        return cls(usage.input + usage.output, price.of(usage))

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.tokens + other.tokens, self.usd + other.usd)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.tokens - other.tokens, self.usd - other.usd)

    def fits(self, most: "Amount") -> bool:
        return self.tokens <= most.tokens and self.usd <= most.usd

    def or_more(self, other: "Amount") -> "Amount":
        return Amount(max(self.tokens, other.tokens), max(self.usd, other.usd))

    def or_less(self, other: "Amount") -> "Amount":
        return Amount(min(self.tokens, other.tokens), min(self.usd, other.usd))

    def part(self, parts: int) -> "Amount":
        """One of so many; nothing of what is unlimited, which nobody has to divide."""
        tokens = 0 if self.tokens == _UNLIMITED else max(0, int(self.tokens) // parts)
        return Amount(tokens, 0.0 if self.usd == _UNLIMITED else max(0.0, self.usd / parts))


@dataclass(frozen=True, slots=True)
class Reservation:
    tokens: int
    usd: float
    price: Price


class Budget:
    """One for all models that are asked, each at its own price. Of one that several workers share each has its own
    account, and spends no more than it has leased."""

    def __init__(self, *, max_tokens: int | None = None, max_usd: float | None = None) -> None:
        self.most = Amount(_UNLIMITED if max_tokens is None else max_tokens, _UNLIMITED if max_usd is None else max_usd)
        self._allowed = self.most
        self._elsewhere = Amount()
        self._reserved_tokens = 0
        self._reserved_usd = 0.0
        self._tokens = 0
        self._usd = 0.0

    @property
    def tokens(self) -> int:
        """Spent by all, as far as is known here."""
        return self._tokens + int(self._elsewhere.tokens)

    @property
    def usd(self) -> float:
        return self._usd + self._elsewhere.usd

    @property
    def spent_here(self) -> Amount:
        return Amount(self._tokens, self._usd)

    @property
    def taken_here(self) -> Amount:
        """With what is reserved."""
        return Amount(self._tokens + self._reserved_tokens, self._usd + self._reserved_usd)

    def lease(self, allowed: Amount) -> None:
        """What is spent and reserved here may come to so much by now; where there is no limit, there is none."""
        self._allowed = Amount(
            _UNLIMITED if self.most.tokens == _UNLIMITED else allowed.tokens,
            _UNLIMITED if self.most.usd == _UNLIMITED else allowed.usd,
        )

    def heard(self, elsewhere: Amount) -> None:
        """Other workers, and those before them, have spent so much at least."""
        self._elsewhere = elsewhere

    def reserve(self, worst: Usage, price: Price) -> Reservation | None:
        """None if it does not fit beside what is reserved; see `is_out` for whether waiting can help."""
        wanted = Reservation(worst.input + worst.output, price.of(worst), price)
        if (
            self._tokens + self._reserved_tokens + wanted.tokens > self._allowed.tokens
            or self._usd + self._reserved_usd + wanted.usd > self._allowed.usd
        ):
            return None
        self._reserved_tokens += wanted.tokens
        self._reserved_usd += wanted.usd
        return wanted

    def is_out(self, worst: Usage, price: Price) -> bool:
        """Whether this can never fit, whatever the requests under way come to, here and elsewhere."""
        return not (self._elsewhere + (self.spent_here + Amount.of(worst, price))).fits(self.most)

    def settle(self, reserved: Reservation, usage: Usage) -> None:
        self._reserved_tokens -= reserved.tokens
        self._reserved_usd = max(0.0, self._reserved_usd - reserved.usd) if self._reserved_tokens else 0.0
        self.spend(usage, reserved.price)

    def spend(self, usage: Usage, price: Price) -> None:
        self._tokens += usage.input + usage.output
        self._usd += price.of(usage)

    def spent_before(self, amount: Amount) -> None:
        """By earlier runs with the same checkpoint."""
        self._tokens += int(amount.tokens)
        self._usd += amount.usd
