import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from batch_agent.sim import SimConfig, SimServer


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The SSE data of a streamed answer, without the final [DONE]."""
        events = [event.removeprefix("data: ") for event in self.body.decode().split("\n\n") if event]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]


Send = Callable[..., Response]


def raw(body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(data), data)


def until(sim: SimServer, name: str, value: float) -> dict[str, float]:
    """The metrics once `name` is `value`; gives up where it never is."""
    deadline = time.monotonic() + 60
    while (metrics := sim.metrics())[name] != value:
        assert time.monotonic() < deadline, f"{name} is {metrics[name]}, not {value}"
    return metrics


@pytest.fixture(scope="session")
def send() -> Send:
    """POSTs a body (or GETs, without one) and reads the whole answer; raises what http.client raises."""

    def send(sim: SimServer, path: str, body: Any = None) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", sim.port, timeout=60)
        try:
            raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request("GET" if body is None else "POST", path, raw)
            answer = connection.getresponse()
            return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    return send


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    """A server without latency; its tests must not count on what is in its cache."""
    with SimServer(SimConfig(zero_latency=True, max_model_len=2048)) as server:
        yield server


@pytest.fixture(scope="module")
def timed() -> Iterator[SimServer]:
    """A server whose steps take 2 ms, with room for 64 blocks of 16 tokens."""
    config = SimConfig(
        num_blocks=64, step_base_ms=2, step_us_per_seq=0, prefill_us_per_token=0, step_ns_per_kv_token=0, chunk_tokens=4
    )
    with SimServer(config) as server:
        yield server
