"""Load of an endpoint that runs and pools share."""

from dataclasses import dataclass
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.schedule.endpoint_load import EndpointLoads, EndpointMembership, fair_part


@dataclass(eq=False)
class Client:
    kind: Literal["run", "pool"]
    limit: int
    in_flight: int = 0
    is_waiting: bool = False
    changes: int = 0

    def limit_at(self, address: str) -> int:
        return self.limit

    def in_flight_at(self, address: str) -> int:
        return self.in_flight

    def is_waiting_at(self, address: str) -> bool:
        return self.is_waiting

    def on_load_changed(self) -> None:
        self.changes += 1


def shared(run: Client, pool: Client) -> tuple[EndpointMembership, EndpointMembership]:
    loads = EndpointLoads()
    return loads.join(run, ["a"]), loads.join(pool, ["a"])


def test_a_client_without_others_has_its_own_limit() -> None:
    loads = EndpointLoads()
    own = loads.join(Client("run", 8, in_flight=3), ["a", "b"])
    assert (own.is_contended, own.allowed_at("a")) == (False, 8)


def test_runs_alone_do_not_limit_each_other() -> None:
    loads = EndpointLoads()
    own = loads.join(Client("run", 8), ["a"])
    loads.join(Client("run", 8, in_flight=8, is_waiting=True), ["a"])
    assert (own.is_contended, own.allowed_at("a")) == (False, 8)


def test_requests_of_a_pool_leave_a_run_the_rest_of_the_largest_limit() -> None:
    run, pool = Client("run", 8), Client("pool", 10, in_flight=7)
    own, _ = shared(run, pool)
    assert own.is_contended
    assert own.allowed_at("a") == 3


def test_clients_that_wait_get_equal_parts_and_small_demands_are_met() -> None:
    run, pool = Client("run", 8, is_waiting=True), Client("pool", 8, is_waiting=True)
    assert [each.allowed_at("a") for each in shared(run, pool)] == [4, 4]
    run.limit = 2
    assert [each.allowed_at("a") for each in shared(run, pool)] == [2, 6]


def test_a_client_that_does_not_wait_leaves_its_part_to_the_others() -> None:
    run, pool = Client("run", 8, in_flight=1), Client("pool", 8, is_waiting=True)
    assert shared(run, pool)[1].allowed_at("a") == 7


def test_other_clients_of_an_endpoint_are_informed_of_joins_changes_and_leaves() -> None:
    run, pool, elsewhere = Client("run", 8), Client("pool", 8), Client("pool", 8)
    loads = EndpointLoads()
    loads.join(elsewhere, ["b"])
    own = loads.join(run, ["a"])
    other = loads.join(pool, ["a"])
    assert (run.changes, pool.changes) == (1, 0)
    own.changed()
    assert (run.changes, pool.changes) == (1, 1)
    other.leave()
    other.leave()  # twice is harmless
    assert (run.changes, own.is_contended, elsewhere.changes) == (2, False, 0)
    own.leave()
    assert not loads.clients_at("a")


@given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=2, max_size=5), st.data())
def test_the_sum_never_exceeds_the_largest_limit_and_a_waiting_client_is_not_starved(
    sizes: list[tuple[int, bool]], data: st.DataObject
) -> None:
    loads = EndpointLoads()
    clients = [Client("run" if at % 2 else "pool", limit, is_waiting=wait) for at, (limit, wait) in enumerate(sizes)]
    members = [loads.join(client, ["a"]) for client in clients]
    capacity = max(client.limit for client in clients)
    for at in data.draw(st.lists(st.integers(0, len(clients) - 1), max_size=60)):
        if clients[at].in_flight < members[at].allowed_at("a"):
            clients[at].in_flight += 1
        elif clients[at].in_flight:
            clients[at].in_flight -= 1
        assert sum(client.in_flight for client in clients) <= capacity
    for client in clients:
        client.in_flight = 0
    assert all(member.allowed_at("a") >= 1 for member in members)


@given(st.integers(1, 100), st.integers(1, 100), st.lists(st.integers(0, 100), max_size=6))
def test_a_fair_part_is_at_least_an_equal_part_of_the_capacity(capacity: int, own: int, others: list[int]) -> None:
    part = fair_part(capacity, own, others)
    assert min(own, capacity // (1 + len(others))) <= part <= own
