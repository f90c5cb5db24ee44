"""Prices of tokens, as providers bill them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..fast_dataclass import dataclass
from ..requests import LANES, Lane, Usage
from ..validation import is_number, is_whole

_MILLION = 1_000_000
_KINDS = ("input", "cached", "output", "written", "written_hour")
_LANES_WITH_PRICES = LANES[1:]
PRICE_FORMAT = (
    "(input, cached, output), (input, cached, output, written, written_hour), or a dict with these names, 'long', "
    "'flex' and 'batch', in dollars per million tokens"
)

GivenPrice = Sequence[float] | Mapping[str, Any]
"""A price as users write it. See PRICE_FORMAT."""
PriceNumbers = tuple[float, ...]
"""A price as it is stored, in dollars per million tokens: input, cached input and output; input written to a cache for
minutes and for an hour; then, for each price of long prompts, the tokens above which it holds and its five numbers;
then, for each lane with prices of its own, minus the number of the lane and these numbers."""


@dataclass(frozen=True, slots=True)
class Price:
    """Prices in US dollars per token."""

    input: float
    cached: float
    output: float
    written: float | None = None
    """Of input that was written to the provider's cache, for minutes. None: as `input`."""
    written_hour: float | None = None
    """Of input that was written to the provider's cache for an hour. None: as `written`."""
    long: "Price | None" = None
    """Of a request whose prompt has more than `long_above` tokens: all of it, not only what is above."""
    long_above: int = 0
    source: str = ""
    """Table that the price comes from, with its version and date; empty if the user gave it."""
    lanes: "tuple[tuple[Lane, Price], ...]" = ()
    """Prices of lanes other than the standard one. A lane that has none costs half of each number."""

    def in_lane(self, lane: Lane) -> "Price":
        """The price of requests in a lane."""
        if lane == "standard":
            return self
        given = [price for name, price in self.lanes if name == lane]
        return given[0] if given else self._scaled(_LANE_SHARE)

    def of(self, usage: Usage) -> float:
        """Cost of a sum of requests. Those in other lanes and those with long prompts are known by `usage.parts`."""
        cost = self._flat(usage)
        for part in usage.parts:
            billed = self.in_lane(part.lane)._at(part.above + 1)
            cost += billed._flat(part.tokens) - self._flat(part.tokens)
        return cost

    def of_request(self, usage: Usage) -> float:
        """Cost of one request."""
        return self.in_lane(usage.lane)._at(usage.input)._flat(usage)

    def at_most(self, usage: Usage) -> float:
        """Upper bound of the cost of one request with no more tokens than these: any of them may be written to the
        cache, for as long as the usage has it written."""
        return self.in_lane(usage.lane)._bound(usage)

    def worst(self, prompt: int, answer: int, *, for_hour: bool = False, lane: Lane = "standard") -> Usage:
        """The costliest usage of a request with this prompt and answer: its prompt may be written to the cache.
        `for_hour`: also for an hour."""
        at = self.in_lane(lane)._at(prompt)
        minutes, hour = at._writes
        if for_hour and hour >= max(minutes, at.input):
            worst = Usage(prompt, 0, answer, written_hour=prompt)
        else:
            worst = Usage(prompt, 0, answer, written=prompt if minutes > at.input else 0)
        return worst if lane == "standard" else worst.in_lane(lane)

    def of_answer(self, prompt: int, lane: Lane) -> float:
        """Price of a token of the answer to a prompt of this length."""
        return self.in_lane(lane)._at(prompt).output

    @property
    def highest(self) -> float:
        """Highest price of any token."""
        others = [price.highest for price in (self.long, *dict(self.lanes).values()) if price is not None]
        return max(self.input, self.cached, self.output, *self._writes, *others)

    @property
    def bills_writes(self) -> bool:
        """Whether input that is written to the provider's cache has a price of its own."""
        return self._writes != (self.input, self.input)

    @property
    def numbers(self) -> PriceNumbers:
        """As it is stored."""
        has_more = self.long is not None or self.bills_writes
        each = (self.input, self.cached, self.output, *(self._writes if has_more else ()))
        longer = () if self.long is None else (self.long_above, *self.long._five)
        deeper = () if self.long is None or self.long.long is None else self.long.numbers[5:]
        lanes = [number for lane, price in self.lanes for number in (-LANES.index(lane), *price.numbers)]
        return (*(price * _MILLION for price in each), *longer, *deeper, *lanes)

    @property
    def _five(self) -> PriceNumbers:
        return tuple(price * _MILLION for price in (self.input, self.cached, self.output, *self._writes))

    @property
    def _writes(self) -> tuple[float, float]:
        written = self.input if self.written is None else self.written
        return written, written if self.written_hour is None else self.written_hour

    def _at(self, prompt: int) -> "Price":
        return self if self.long is None or prompt <= self.long_above else self.long._at(prompt)

    def _flat(self, usage: Usage) -> float:
        plain = usage.input * self.input + usage.cached * (self.cached - self.input) + usage.output * self.output
        if not usage.written and not usage.written_hour:
            return plain
        minutes, hour = self._writes
        return plain + usage.written * (minutes - self.input) + usage.written_hour * (hour - self.input)

    def _bound(self, usage: Usage) -> float:
        minutes, hour = self._writes
        highest = max(self.input, self.cached, minutes, hour if usage.written_hour else 0.0)
        bound = usage.input * highest + usage.output * self.output
        return bound if self.long is None or usage.input <= self.long_above else max(bound, self.long._bound(usage))

    def _scaled(self, share: float) -> "Price":
        written, written_hour = self._writes
        longer = None if self.long is None else self.long._scaled(share)
        return Price(
            self.input * share, self.cached * share, self.output * share, written * share, written_hour * share,
            longer, self.long_above, self.source,
        )  # fmt: skip


FREE = Price(0.0, 0.0, 0.0)
_LANE_SHARE = 0.5
"""What the lanes flex and batch cost at all providers that have them, as a share of the standard price."""


def price_from_numbers(numbers: Sequence[float]) -> Price:
    """The price that `Price.numbers` stored. Raises ValueError."""
    ends = [*(at for at, number in enumerate(numbers) if number < 0), len(numbers)]
    lanes = ((LANES[int(-numbers[at])], _without_lanes(numbers[at + 1 : end])) for at, end in pairwise(ends))
    return replace(_without_lanes(numbers[: ends[0]]), lanes=tuple(lanes))


def _without_lanes(numbers: Sequence[float]) -> Price:
    price: Price | None = None
    above = 0.0
    for start in range(len(numbers) - 6, 4, -6):
        price, above = _price(numbers[start + 1 : start + 6], price, above), numbers[start]
    return _price(numbers[:5], price, above)


def parse_price(given: Any, written: float = 1.0, written_hour: float = 1.0) -> Price:
    """A price as users write it. `written`, `written_hour`: what written input costs if it is not given, as multiples
    of the input price. Raises ValueError."""
    if isinstance(given, Mapping):
        return _parse_mapping(given, written, written_hour)
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) not in (3, 5):
        raise ValueError(given)
    _check(given)
    if len(given) == 5:
        return _price(given)
    return _price([*given, given[0] * written, given[0] * written_hour])


def _parse_mapping(given: Mapping[Any, Any], written: float, written_hour: float) -> Price:
    lanes = {lane: given[lane] for lane in _LANES_WITH_PRICES if given.get(lane) is not None}
    price = _parse_names({name: given[name] for name in given if name not in _LANES_WITH_PRICES}, written, written_hour)
    return replace(price, lanes=tuple((lane, _parse_lane(price, each)) for lane, each in lanes.items()))


def _parse_lane(standard: Price, given: Any) -> Price:
    """Prices of a lane. What is not given is the usual share of the standard price."""
    if not isinstance(given, Mapping):
        raise ValueError(given)
    return _parse_names({**_names(standard._scaled(_LANE_SHARE)), **given})


def _names(price: Price) -> dict[str, Any]:
    """A price as users write it, without lanes."""
    names: dict[str, Any] = dict(zip(_KINDS, price._five, strict=True))
    return names if price.long is None else {**names, "long": {"above": price.long_above, **_names(price.long)}}


def _parse_names(
    given: Mapping[Any, Any], written: float = 1.0, written_hour: float = 1.0, *, is_long: bool = False
) -> Price:
    if not set(given) <= {*_KINDS, "long", *(("above",) if is_long else ())}:
        raise ValueError(given)
    fallback: Any = given.get("input")
    _check([fallback])
    defaults = {"cached": fallback, "written": fallback * written, "written_hour": fallback * written_hour}
    five = [given.get(name, defaults.get(name)) for name in _KINDS]
    _check(five)
    longer = given.get("long")
    if longer is None:
        return _price(five)
    if not isinstance(longer, Mapping) or not is_whole(longer.get("above")) or longer["above"] < 1:
        raise ValueError(given)
    return _price(five, _parse_names(longer, written, written_hour, is_long=True), longer["above"])


def _price(numbers: Sequence[float], longer: Price | None = None, above: float = 0) -> Price:
    if len(numbers) not in (3, 5):
        raise ValueError(numbers)
    fresh, cached, output, *writes = (float(number) / _MILLION for number in numbers)
    written, written_hour = writes or (None, None)
    return Price(fresh, cached, output, written, written_hour, longer, int(above))


def _check(numbers: Sequence[Any]) -> None:
    if not all(is_number(number) and number >= 0 for number in numbers):  # a NaN would make every budget endless
        raise ValueError(numbers)
