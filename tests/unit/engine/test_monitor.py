"""A server that tells its load is asked for it while a run is under way, and not a moment longer."""

import asyncio
import gc
from contextlib import nullcontext

import pytest

from batch_agent.core.errors import BackendError, ErrorKind
from batch_agent.core.protocols.backend import ServerLoad
from batch_agent.engine.admission import AdmissionController
from batch_agent.engine.monitor import monitor_load
from batch_agent.engine.slots import Slots
from batch_agent.schedule.concurrency_limit import InflightLimit
from batch_agent.schedule.slot_queue import Priority
from batch_agent.testing import run_virtual


class Server:
    """Says what it is told to say, the last thing again and again."""

    def __init__(self, *said: ServerLoad | Exception | None, seconds: float = 0.0) -> None:
        """`seconds`: how long it takes to say it."""
        self._said = list(said)
        self._seconds = seconds
        self.asked_at: list[float] = []

    async def load(self) -> ServerLoad | None:
        self.asked_at.append(now())
        await asyncio.sleep(self._seconds)
        said = self._said.pop(0) if len(self._said) > 1 else self._said[0]
        if isinstance(said, Exception):
            raise said
        return said


class Silent:
    """A server without a word for its load."""


class Watched(AdmissionController):
    """Writes down what it is told, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__(Slots(InflightLimit(2, fixed=False)))
        self.seen: list[ServerLoad] = []
        self.is_closed = False

    def on_load(self, load: ServerLoad) -> None:
        assert not self.is_closed
        self.seen.append(load)
        super().on_load(load)

    async def aclose(self) -> None:
        self.is_closed = True
        await super().aclose()


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_load_of_a_server_is_polled_often_at_first_and_then_twice_a_second() -> None:
    async def main() -> None:
        server, gate = Server(ServerLoad(running=1), ServerLoad(running=2)), Watched()
        async with monitor_load(server, gate):
            await asyncio.sleep(2.5)
        assert server.asked_at == pytest.approx([0.1, 0.3, 0.7, 1.2, 1.7, 2.2])
        assert gate.seen == [ServerLoad(running=1), *[ServerLoad(running=2)] * 5]

    run_virtual(main())


@pytest.mark.parametrize(("seconds", "between"), [(0.005, 0.505), (0.05, 1.05), (1.0, 6.0)])
def test_a_server_with_slow_load_reports_is_polled_less_often(seconds: float, between: float) -> None:
    async def main() -> None:
        server = Server(ServerLoad(running=1), seconds=seconds)
        async with monitor_load(server, Watched()):
            await asyncio.sleep(60)
        assert server.asked_at[-1] - server.asked_at[-2] == pytest.approx(between)
        assert server.asked_at[7] == pytest.approx(3.2 + 7 * seconds)  # as often as others, while the limit may grow

    run_virtual(main())


def test_a_server_without_load_reports_is_not_polled() -> None:
    async def main() -> None:
        gate = Watched()
        async with monitor_load(Silent(), gate):
            assert asyncio.all_tasks() == {asyncio.current_task()}
            await asyncio.sleep(10)
        assert gate.seen == []
        assert gate.is_closed

    run_virtual(main())


def test_a_load_poll_adjusts_the_concurrency_limit() -> None:
    async def main() -> None:
        gate = Watched()
        async with monitor_load(Server(ServerLoad(running=2)), gate):
            for _ in range(2):
                await gate.slots.acquire(Priority(is_fresh=True))
            await asyncio.sleep(0.5)
        assert gate.slots.limit == 4

    run_virtual(main())


def test_a_failed_load_poll_is_repeated() -> None:
    async def main() -> None:
        server, gate = Server(None, None, ServerLoad(running=7)), Watched()
        async with monitor_load(server, gate):
            await asyncio.sleep(1)
        assert len(server.asked_at) == 3
        assert gate.seen == [ServerLoad(running=7)]

    run_virtual(main())


@pytest.mark.parametrize("error", [None, ZeroDivisionError(), asyncio.CancelledError()])
def test_load_polling_ends_with_its_block(error: BaseException | None) -> None:
    async def main() -> None:
        server, gate = Server(ServerLoad()), Watched()
        with nullcontext() if error is None else pytest.raises(type(error)):
            async with monitor_load(server, gate):
                await asyncio.sleep(1)
                if error is not None:
                    raise error
        asked = len(server.asked_at)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert gate.is_closed
        await asyncio.sleep(10)
        assert len(server.asked_at) == asked == 3

    run_virtual(main())


def test_a_load_poll_in_flight_is_cancelled_when_the_block_ends() -> None:
    class Slow:
        is_called_off = False

        async def load(self) -> ServerLoad | None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                self.is_called_off = True
                raise
            return ServerLoad()

    async def main() -> None:
        server, gate = Slow(), Watched()
        async with monitor_load(server, gate):
            await asyncio.sleep(5)
        assert now() == 5
        assert server.is_called_off
        assert gate.seen == []

    run_virtual(main())


BROKEN = [ZeroDivisionError("boom"), BackendError(ErrorKind.SERVER, "boom")]


@pytest.mark.parametrize("error", BROKEN)
def test_a_backend_that_raises_in_a_load_poll_is_not_polled_again(error: Exception) -> None:
    async def main() -> None:
        server, gate = Server(ServerLoad(), error), Watched()
        async with monitor_load(server, gate):
            await asyncio.sleep(10)
            for _ in range(2):
                await gate.slots.acquire(Priority(is_fresh=True))
            for _ in range(20):
                gate.slots.on_success(1.0)
        assert len(server.asked_at) == 2
        assert gate.slots.limit > 2  # found by answers, since nobody looks
        assert gate.is_closed

    run_virtual(main())


@pytest.mark.parametrize("error", BROKEN)
def test_a_failed_load_poll_is_logged_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with monitor_load(Server(ServerLoad(), error), Watched()):
            await asyncio.sleep(10)

    run_virtual(main())
    gc.collect(1)
    [record] = [record for record in caplog.records if record.name == "batch_agent" and record.levelname == "ERROR"]
    assert record.exc_info
    assert record.exc_info[1] is error
