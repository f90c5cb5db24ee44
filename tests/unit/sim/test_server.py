import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from batch_agent.sim import SimConfig, SimServer
from batch_agent.sim.http import ClientConnection
from batch_agent.sim.routes import FrontEnd

from .conftest import Send, raw, until

COMPLETIONS = "/v1/completions"


@dataclass(slots=True)
class Timer:
    when: float
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass(slots=True)
class Clock:
    """A time that is set by hand, and timers that are only remembered."""

    now: float = 0.0
    timers: list[Timer] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        self.timers.append(Timer(when))
        return self.timers[-1]


def connection() -> ClientConnection:
    return ClientConnection(lambda request, connection: None, set())


def finished_at(config: SimConfig, requests: int, prompts: int) -> float:
    """When the front end is through with so many requests of so many prompts that come at once."""
    clock = Clock()
    front_end = FrontEnd(config, clock)
    for _ in range(requests):
        front_end.schedule(prompts, connection(), lambda: None)
    return clock.timers[-1].when


def test_requests_are_taken_one_after_the_other() -> None:
    clock = Clock()
    front_end = FrontEnd(SimConfig(request_overhead_ms=10, prompt_overhead_ms=1), clock)
    for prompts in (1, 5):
        front_end.schedule(prompts, connection(), lambda: None)
    clock.now = 1.0
    front_end.schedule(0, connection(), lambda: None)
    assert [timer.when for timer in clock.timers] == pytest.approx([0.011, 0.026, 1.010])


def test_many_prompts_in_few_requests_cost_less_than_one_each() -> None:
    config = SimConfig(request_overhead_ms=5, prompt_overhead_ms=0.5)
    assert finished_at(config, requests=1000, prompts=1) == pytest.approx(5.5)
    assert finished_at(config, requests=10, prompts=100) == pytest.approx(0.55)


def test_without_overhead_nothing_waits() -> None:
    clock = Clock()
    taken: list[str] = []
    FrontEnd(SimConfig(), clock).schedule(100, connection(), lambda: taken.append("now"))
    assert taken == ["now"]
    assert not clock.timers


def test_a_client_that_leaves_the_queue_is_forgotten() -> None:
    clock = Clock()
    client = connection()
    FrontEnd(SimConfig(request_overhead_ms=1), clock).schedule(1, client, lambda: None)
    client.connection_lost(None)
    assert clock.timers[0].is_cancelled


@pytest.mark.parametrize("zero_latency", [True, False])
def test_a_server_with_overhead_answers_and_refuses_as_any_other(send: Send, zero_latency: bool) -> None:
    config = SimConfig(zero_latency=zero_latency, step_base_ms=0.1, request_overhead_ms=1, prompt_overhead_ms=0.1)
    with SimServer(config) as sim:
        assert len(send(sim, COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 4}).json()["choices"]) == 2
        assert len(send(sim, COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 1, "stream": True}).events()) == 2
        assert send(sim, COMPLETIONS, {}).status == 400
        assert send(sim, COMPLETIONS, {"prompt": '[[sim: {"fault": "500"}]]'}).status == 500
        assert send(sim, "/tokenize", {"prompt": "a"}).json()["count"] == 1


def test_a_client_that_hangs_up_in_the_queue_is_never_served(send: Send) -> None:
    with SimServer(SimConfig(zero_latency=True, request_overhead_ms=200)) as sim:
        with socket.create_connection(("127.0.0.1", sim.port), timeout=60) as client:
            client.sendall(raw({"prompt": ["a"] * 9}, COMPLETIONS))
        assert send(sim, COMPLETIONS, {"prompt": "b"}).status == 200
        assert until(sim, "vllm:request_success_total", 1)["sim:http_requests_total"] == 1


def test_a_slowdown_stretches_every_step() -> None:
    usual, slow = SimConfig(), SimConfig(slowdown=2.5)
    for step in ((1, 0, 0.0), (8, 100, 5000.0)):
        assert slow.step_seconds(*step) == pytest.approx(2.5 * usual.step_seconds(*step))
    assert SimConfig(slowdown=3, zero_latency=True).step_seconds(8, 100, 5000) == 0


@pytest.mark.parametrize("wrong", [{"slowdown": 0}, {"request_overhead_ms": -1}, {"prompt_overhead_ms": -1}])
def test_costs_that_no_server_has_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SimConfig(**wrong)  # type: ignore[arg-type]
