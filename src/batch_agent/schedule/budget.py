"""What a run may spend. The worst case is reserved before a request goes out, and what it came to is settled after, so
that no number of requests in flight can spend more than there is."""

from dataclasses import dataclass

from ..core.requests import Usage


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
class Reservation:
    tokens: int
    usd: float
    price: Price


class Budget:
    """One for all models that are asked, each at its own price."""

    def __init__(self, *, max_tokens: int | None = None, max_usd: float | None = None) -> None:
        self._max_tokens = float("inf") if max_tokens is None else max_tokens
        self._max_usd = float("inf") if max_usd is None else max_usd
        self._reserved_tokens = 0
        self._reserved_usd = 0.0
        self.tokens = 0
        self.usd = 0.0

    def reserve(self, worst: Usage, price: Price) -> Reservation | None:
        """None if it does not fit beside what is reserved; see `is_out` for whether waiting can help."""
        wanted = Reservation(worst.input + worst.output, price.of(worst), price)
        if (
            self.tokens + self._reserved_tokens + wanted.tokens > self._max_tokens
            or self.usd + self._reserved_usd + wanted.usd > self._max_usd
        ):
            return None
        self._reserved_tokens += wanted.tokens
        self._reserved_usd += wanted.usd
        return wanted

    def is_out(self, worst: Usage, price: Price) -> bool:
        """Whether this can never fit, whatever the requests under way come to."""
        tokens, usd = worst.input + worst.output, price.of(worst)
        return self.tokens + tokens > self._max_tokens or self.usd + usd > self._max_usd

    def settle(self, reserved: Reservation, usage: Usage) -> None:
        self._reserved_tokens -= reserved.tokens
        self._reserved_usd = max(0.0, self._reserved_usd - reserved.usd) if self._reserved_tokens else 0.0
        self.spend(usage, reserved.price)

    def spend(self, usage: Usage, price: Price) -> None:
        """Also for what earlier runs with the same checkpoint have used of it."""
        self.tokens += usage.input + usage.output
        self.usd += price.of(usage)
