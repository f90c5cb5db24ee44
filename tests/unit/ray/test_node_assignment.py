"""Which nodes get workers."""

from typing import Any

import pytest

from batch_agent.ray.node_assignment import (
    Node,
    assign_nodes,
    crowded_worker,
    is_loopback_per_node,
    joined_nodes,
    live_nodes,
)

HEAD, FIRST, SECOND = Node("head", "10.0.0.1", 4.0), Node("first", "10.0.0.2", 8.0), Node("second", "10.0.0.3", 8.0)


def listed(name: str, *, is_alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": is_alive, "NodeManagerAddress": f"10.0.0.{name}", "Resources": resources}


def test_a_node_that_is_gone_is_none() -> None:
    found = live_nodes([listed("1", CPU=2.0), listed("2", is_alive=False, CPU=2.0), listed("3", memory=7.0)])
    assert found == [Node("1", "10.0.0.1", 2.0), Node("3", "10.0.0.3", 0.0)]


def test_each_node_gets_one_worker() -> None:
    assert assign_nodes([HEAD, FIRST, SECOND], None, "head") == [FIRST, SECOND, HEAD]


def test_the_callers_node_is_the_last_to_get_one() -> None:
    assert assign_nodes([HEAD, FIRST, SECOND], 2, "head") == [FIRST, SECOND]


def test_more_workers_than_nodes_go_round() -> None:
    assert assign_nodes([FIRST, SECOND], 5, "head") == [FIRST, SECOND, FIRST, SECOND, FIRST]


def test_a_node_without_cpus_gets_none() -> None:
    assert assign_nodes([Node("head", "10.0.0.1"), FIRST], None, "head") == [FIRST]


@pytest.mark.parametrize(("workers", "expected"), [(None, 1), (3, 3)])
def test_where_no_node_has_room_ray_assigns_the_workers(workers: int | None, expected: int) -> None:
    assert assign_nodes([Node("head", "10.0.0.1")], workers, "head") == [None] * expected


def test_a_loopback_address_is_another_server_on_each_node() -> None:
    assert is_loopback_per_node("http://127.0.0.1:8000", [HEAD, FIRST])
    assert is_loopback_per_node("vllm://localhost:8000", [HEAD, FIRST])
    assert not is_loopback_per_node("http://10.0.0.1:8000", [HEAD, FIRST])
    assert not is_loopback_per_node("http://127.0.0.1:8000", [HEAD, Node("other", HEAD.address)])
    assert not is_loopback_per_node("local://", [HEAD, FIRST])


def test_a_node_joins_once_and_only_with_a_cpu() -> None:
    known = {FIRST.id}
    assert joined_nodes([FIRST, SECOND, Node("bare", "10.0.0.4")], known) == [SECOND]
    assert joined_nodes([FIRST, SECOND, Node("bare", "10.0.0.4", 1.0)], known) == [Node("bare", "10.0.0.4", 1.0)]


def test_the_worker_that_moves_to_a_new_node_is_one_that_shares_its_node() -> None:
    assert crowded_worker({"1": "first", "2": "second"}) is None
    assert crowded_worker({"1": "first", "2": "second", "3": "first"}) == "3"
