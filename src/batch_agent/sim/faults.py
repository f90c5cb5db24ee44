"""Fault injection: decides which request fails, and how."""

import zlib
from enum import StrEnum

from ..core.fast_dataclass import dataclass
from .sim_config import FaultRates


class Kind(StrEnum):
    STATUS = "status"
    RESET = "reset"
    STALL = "stall"
    GARBAGE = "garbage"
    TRUNCATED = "truncated"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one request. `status` and `retry_after_s` belong to STATUS, `stall_s` to STALL."""

    kind: Kind
    status: int = 0
    retry_after_s: float | None = None
    stall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FaultOrder:
    """A fault requested by a prompt, for its first `times` attempts or for all of them."""

    fault: Fault
    times: int | None = None


class Faults:
    """Decides each request's fault from the rates, the seed, the request's number and the directives in its prompt."""

    def __init__(self, rates: FaultRates) -> None:
        self._rates = rates
        self.requests = 0
        self._attempts: dict[bytes, int] = {}
        self._shares = [
            (rates.error_500, parse("500", rates)),
            (rates.error_429, parse("429", rates)),
            (rates.reset, parse("reset", rates)),
            (rates.stall, parse("stall", rates)),
            (rates.garbage, parse("garbage", rates)),
            (rates.truncated, parse("truncated", rates)),
        ]
        self._flex_requests = 0
        self._any = any(share for share, _ in self._shares)

    def of_order(self, order: FaultOrder, prompt: bytes) -> Fault | None:
        """The requested fault, unless this prompt has already had it `times` times."""
        tried = self._attempts.get(prompt, 0)
        self._attempts[prompt] = tried + 1
        return order.fault if order.times is None or tried < order.times else None

    def of_chance(self) -> Fault | None:
        self.requests += 1
        if not self._any:
            return None
        draw = zlib.crc32(b"%d:%d" % (self._rates.seed, self.requests)) / 2**32
        for share, fault in self._shares:
            draw -= share
            if draw < 0:
                return fault
        return None

    def refuses_flex(self) -> bool:
        """Whether a flex request finds no capacity."""
        if not self._rates.flex_unavailable:
            return False
        self._flex_requests += 1
        return (
            zlib.crc32(b"flex:%d:%d" % (self._rates.seed, self._flex_requests)) / 2**32 < self._rates.flex_unavailable
        )


def parse(name: str, rates: FaultRates, retry_after_s: float | None = None, stall_s: float | None = None) -> Fault:
    """The fault with this name: an HTTP status from 400 on, or a kind. Raises ValueError for any other name."""
    if name.isdigit() and 400 <= int(name) <= 599:
        wait = retry_after_s if retry_after_s is not None else rates.retry_after_s if name == "429" else None
        return Fault(Kind.STATUS, status=int(name), retry_after_s=wait)
    if name == Kind.STALL:
        return Fault(Kind.STALL, stall_s=rates.stall_s if stall_s is None else stall_s)
    if name in (Kind.RESET, Kind.GARBAGE, Kind.TRUNCATED):
        return Fault(Kind(name))
    raise ValueError(f"unknown fault {name!r}: use a status such as '500', or reset, stall, garbage, truncated")
