"""How full backends are, of all workers together."""

from collections.abc import Iterable

from ..core.events import Sampled


class Fullness:
    """What each worker may use of a backend adds up; what the server says of itself is the same for all of them."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, Sampled]] = {}
        """By backend and worker."""

    def together(self, worker: str, sampled: Sampled) -> Sampled:
        """With what the others said last. One that goes says 0 of 0."""
        workers = self._last.setdefault(sampled.backend, {})
        workers[worker] = sampled
        if len(workers) == 1:
            return sampled
        all_of_them = [sampled, *(each for name, each in workers.items() if name != worker)]
        return Sampled(
            sampled.backend,
            sum(each.inflight for each in all_of_them),
            sum(each.limit for each in all_of_them),
            sum(each.waiting for each in all_of_them),
            _sum(each.residents for each in all_of_them),
            _sum(each.kv_held for each in all_of_them),
            _sum(each.kv_limit for each in all_of_them),
            next((each.kv_usage for each in all_of_them if each.kv_usage is not None), None),
            next((each.server_running for each in all_of_them if each.server_running is not None), None),
            next((each.server_waiting for each in all_of_them if each.server_waiting is not None), None),
        )


def _sum(parts: Iterable[int | None]) -> int | None:
    """Of those that are known."""
    known = [each for each in parts if each is not None]
    return sum(known) if known else None
