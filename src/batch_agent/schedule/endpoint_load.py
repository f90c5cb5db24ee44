"""Load of each endpoint from all clients in this process: a run and a prompt pool share the capacity of an endpoint.

Runs alone, and pools alone, keep their own limits. As soon as both use an endpoint, the sum of their requests in flight
stays within the largest of their limits, and each gets a max-min fair part while the others wait for more."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol


class EndpointClient(Protocol):
    """A run or a pool, as the other clients of an endpoint see it. A prompt in a batch counts as one request."""

    @property
    def kind(self) -> Literal["run", "pool"]: ...

    def limit_at(self, address: str) -> int:
        """The most requests that the client would have in flight there if it were alone."""
        ...

    def in_flight_at(self, address: str) -> int: ...

    def is_waiting_at(self, address: str) -> bool:
        """Whether the client would send more requests there if it could."""
        ...

    def on_load_changed(self) -> None:
        """Another client's requests in flight, or its demand, have changed. Called only while endpoints are shared."""
        ...


class EndpointMembership:
    """One client's registration at its endpoints."""

    __slots__ = ("_client", "_loads", "addresses", "is_contended")

    def __init__(self, loads: "EndpointLoads", client: EndpointClient, addresses: Sequence[str]) -> None:
        self._loads = loads
        self._client = client
        self.addresses = addresses
        self.is_contended = False
        """Whether a client of the other kind uses one of the endpoints. An attribute, so that a run or a pool without
        the other pays for no call."""

    def allowed_at(self, address: str) -> int:
        """The most requests that the client may have in flight at this endpoint now."""
        clients = self._loads.clients_at(address)
        limit = self._client.limit_at(address)
        if not _is_contended(clients):
            return limit
        others = [client for client in clients if client is not self._client]
        capacity = max(client.limit_at(address) for client in clients)
        allowed = min(limit, capacity - sum(client.in_flight_at(address) for client in others))
        if any(client.is_waiting_at(address) for client in others):
            allowed = min(allowed, fair_part(capacity, limit, [_demand(client, address) for client in others]))
        return max(0, allowed)

    def changed(self) -> None:
        """The client's requests in flight, or its demand, have changed: the other clients are informed."""
        for client in self._loads.neighbours(self._client, self.addresses):
            client.on_load_changed()

    def leave(self) -> None:
        self._loads.remove(self._client, self)


class EndpointLoads:
    """The clients of each endpoint, by address."""

    def __init__(self) -> None:
        self._clients: dict[str, list[EndpointClient]] = {}
        self._memberships: dict[int, EndpointMembership] = {}

    def join(self, client: EndpointClient, addresses: Iterable[str]) -> EndpointMembership:
        """Registers a client until it leaves."""
        membership = EndpointMembership(self, client, list(dict.fromkeys(addresses)))
        self._memberships[id(client)] = membership
        for address in membership.addresses:
            self._clients.setdefault(address, []).append(client)
        self._update(membership)
        return membership

    def remove(self, client: EndpointClient, membership: EndpointMembership) -> None:
        if self._memberships.pop(id(client), None) is None:
            return
        neighbours = self.neighbours(client, membership.addresses)
        for address in membership.addresses:
            self._clients[address].remove(client)
            if not self._clients[address]:
                del self._clients[address]
        for each in neighbours:
            self._refresh(self._memberships[id(each)])
            each.on_load_changed()

    def clients_at(self, address: str) -> Sequence[EndpointClient]:
        return self._clients.get(address, ())

    def neighbours(self, client: EndpointClient, addresses: Iterable[str]) -> list[EndpointClient]:
        """The other clients at these endpoints, each once."""
        found = {id(each): each for address in addresses for each in self._clients.get(address, ())}
        found.pop(id(client), None)
        return list(found.values())

    def _update(self, joined: EndpointMembership) -> None:
        self._refresh(joined)
        for client in self.neighbours(joined._client, joined.addresses):
            self._refresh(self._memberships[id(client)])
            client.on_load_changed()

    def _refresh(self, membership: EndpointMembership) -> None:
        membership.is_contended = any(_is_contended(self.clients_at(address)) for address in membership.addresses)


def fair_part(capacity: int, own: int, others: Sequence[int]) -> int:
    """The max-min fair part of a client with the demand `own`, rounded up."""
    remaining, left = capacity, 1 + len(others)
    for demand in sorted(others):
        part = -(-remaining // left)
        if demand >= part:
            break
        remaining, left = remaining - demand, left - 1
    return min(own, -(-remaining // left))


def _is_contended(clients: Sequence[EndpointClient]) -> bool:
    return len({client.kind for client in clients}) > 1


def _demand(client: EndpointClient, address: str) -> int:
    return client.limit_at(address) if client.is_waiting_at(address) else client.in_flight_at(address)
