"""Load of the backends over time, from samples."""

from typing import Any

from ...core.events import LoadSampled

_FINEST = 0.05
_MAX_POINTS = 600
_FIELDS = (
    "inflight", "limit", "waiting", "residents", "kv_held", "kv_limit", "kv_usage", "server_running", "server_waiting",
)  # fmt: skip
_SHARES = frozenset({"kv_usage"})
"""Fields that are averaged over backends; all others are summed."""


class Series:
    """Samples averaged in bins. When there are too many bins, adjacent ones are merged in pairs, so the number of
    points is bounded."""

    def __init__(self) -> None:
        self._width = _FINEST
        self._bins: dict[int, dict[str, _Bin]] = {}
        """Bins of each backend, by number."""

    def take(self, at: float, sampled: LoadSampled) -> None:
        while at >= _MAX_POINTS * self._width:
            self._widen()
        bins = self._bins.setdefault(int(at / self._width), {})
        bins.setdefault(sampled.backend, _Bin()).add(sampled)

    def as_json(self) -> dict[str, list[Any]]:
        shown = sorted(self._bins)
        columns = {
            name: [_joined([each.average(number) for each in self._bins[index].values()], name) for index in shown]
            for number, name in enumerate(_FIELDS)
        }
        return {"at": [round((index + 0.5) * self._width, 2) for index in shown], **columns}

    def _widen(self) -> None:
        self._width *= 2
        before, self._bins = self._bins, {}
        for index, bins in before.items():
            wider = self._bins.setdefault(index // 2, {})
            for backend, each in bins.items():
                wider.setdefault(backend, _Bin()).join(each)


class _Bin:
    """Sums and counts of one backend's samples."""

    __slots__ = ("_counts", "_sums")

    def __init__(self) -> None:
        self._sums = [0.0] * len(_FIELDS)
        self._counts = [0] * len(_FIELDS)

    def add(self, sampled: LoadSampled) -> None:
        for number, name in enumerate(_FIELDS):
            value = getattr(sampled, name)
            if value is not None:
                self._sums[number] += value
                self._counts[number] += 1

    def join(self, other: "_Bin") -> None:
        self._sums = [own + more for own, more in zip(self._sums, other._sums, strict=True)]
        self._counts = [own + more for own, more in zip(self._counts, other._counts, strict=True)]

    def average(self, number: int) -> float | None:
        return self._sums[number] / self._counts[number] if self._counts[number] else None


def _joined(averages: list[float | None], name: str) -> float | None:
    """Value over all backends that report it."""
    known = [each for each in averages if each is not None]
    if not known:
        return None
    return round(sum(known) / (len(known) if name in _SHARES else 1), 4)
