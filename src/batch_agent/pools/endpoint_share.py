"""A pool as a client of its endpoints, alongside runs in the same process."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from ..backends.endpoints.endpoint_pool import EndpointPool
from ..schedule.endpoint_load import EndpointLoads, EndpointMembership
from .endpoint_state import EndpointState


class PromptCall(Protocol):
    """A call of the pool in progress."""

    def is_waiting_at(self, endpoint: int) -> bool:
        """Whether the call has prompts to send to this endpoint."""
        ...

    def wake(self) -> None:
        """Makes the call look for room again."""
        ...


class PoolShare:
    """The part of each endpoint's capacity that a pool with its sub-pools may use now."""

    kind: Literal["pool"] = "pool"

    def __init__(
        self,
        endpoint_pool: EndpointPool,
        states: Sequence[EndpointState],
        max_prompts: int,
        loads: EndpointLoads,
        address_of: Callable[[str], str],
    ) -> None:
        self._states = states
        self._max_prompts = max_prompts
        self._addresses = [address_of(member.url) for member in endpoint_pool.members]
        self.calls: set[PromptCall] = set()
        self.membership: EndpointMembership = loads.join(self, self._addresses)

    def room_at(self, endpoint: int) -> int:
        """Number of prompts that may be sent to this endpoint now, while a run uses it too."""
        address = self._addresses[endpoint]
        return self.membership.allowed_at(address) - self.in_flight_at(address)

    def limit_at(self, address: str) -> int:
        return self._max_prompts * self._addresses.count(address)

    def in_flight_at(self, address: str) -> int:
        return sum(self._states[endpoint].unfinished for endpoint in self._endpoints_at(address))

    def is_waiting_at(self, address: str) -> bool:
        endpoints = self._endpoints_at(address)
        return any(call.is_waiting_at(endpoint) for call in self.calls for endpoint in endpoints)

    def on_load_changed(self) -> None:
        for call in self.calls:
            call.wake()

    def _endpoints_at(self, address: str) -> list[int]:
        return [endpoint for endpoint, own in enumerate(self._addresses) if own == address]
