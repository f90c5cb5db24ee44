"""Views that take their time, in a thread of their own."""

import asyncio
import logging
import os
import signal
import threading
import time
import warnings

import pytest

from batch_agent import BatchAgent, SpecError
from batch_agent.core.events import Event, Notice, Resumed
from batch_agent.core.messages import Prompt
from batch_agent.core.requests import EncodedRequest, Exchange, Request, Sampling
from batch_agent.observe.background_sink import BackgroundSink
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.sinks import FanOutSink, combine_sinks
from batch_agent.testing import ScriptedBackend, by_turn, say


class Noted:
    """A view that notes what it is told, and by whom."""

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[Event] = []
        self.threads: set[int] = set()
        self.closed = 0
        self._fails_at = fails_at

    def take(self, at: float, event: Event) -> None:
        self._note("take")
        self.told.append(event)

    def flush(self) -> None:
        self._note("flush")

    def close(self) -> None:
        self.closed += 1
        self._note("close")

    def _note(self, what: str) -> None:
        self.threads.add(threading.get_ident())
        if what == self._fails_at:
            raise RuntimeError(f"cannot {what}")


def test_a_sink_gets_all_events_and_is_closed_in_one_background_thread() -> None:
    view = Noted()
    aside = BackgroundSink([view])
    aside.emit(Notice("before"))
    with aside:
        aside.emit(Notice("during"))
    assert view.told == [Notice("before"), Notice("during")]
    assert view.closed == 1
    assert len(view.threads) == 1
    assert threading.get_ident() not in view.threads


class WithExchanges:
    """Notes what it takes, in order."""

    def __init__(self, wants_exchanges: bool) -> None:
        self.wants_exchanges = wants_exchanges
        self.taken: list[str] = []

    def take(self, at: float, event: Event) -> None:
        self.taken.append(type(event).__name__)

    def take_exchange(self, exchange: Exchange) -> None:
        self.taken.append(exchange.request.agent)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def test_an_exchange_is_taken_before_the_events_that_follow_from_it() -> None:
    wants, wants_not = WithExchanges(True), WithExchanges(False)
    sink = BackgroundSink([wants_not, wants])
    observe = sink.request_observer
    assert observe is not None
    request = Request(Prompt(""), (), "m", Sampling(), agent="a")
    with sink:
        observe(Exchange(request, EncodedRequest("", "", {}, None), 0.0, 0.0))
        sink.emit(Notice("answered"))
    assert wants.taken == ["a", "Notice"]
    assert wants_not.taken == ["Notice"]
    assert BackgroundSink([wants_not]).request_observer is None


@pytest.mark.parametrize("fails_at", ["take", "flush", "close"])
def test_a_failing_sink_gets_no_more_events_and_affects_no_other_sink(
    fails_at: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Noted(fails_at), Noted()
    with caplog.at_level(logging.WARNING, "batch_agent"), BackgroundSink([broken, sound]) as aside:
        aside.emit(Resumed())
    assert sound.told == [Resumed()]
    assert (broken.closed, sound.closed) == (1, 1)
    assert f"cannot {fails_at}" in caplog.text


def test_a_background_sink_entered_twice_is_closed_once() -> None:
    view = Noted()
    with BackgroundSink([view]) as aside:
        with aside:
            aside.emit(Notice("inner"))
        aside.emit(Notice("outer"))
        assert view.closed == 0
    assert view.told == [Notice("inner"), Notice("outer")]
    assert view.closed == 1


def test_a_background_sink_entered_again_restarts_failed_sinks() -> None:
    view = Noted("take")
    aside = BackgroundSink([view])
    for _ in range(2):
        with aside:
            aside.emit(Resumed())
        view._fails_at = ""
    assert view.told == [Resumed()]
    assert view.closed == 2


def test_events_emitted_without_an_open_sink_are_bounded() -> None:
    aside = BackgroundSink([Noted()])
    with aside:
        pass
    for _ in range(20_000):
        aside.emit(Resumed())
    assert len(aside._events) == 10_000


def test_an_interrupt_while_the_views_are_waited_for_does_not_keep_them_from_their_end() -> None:
    closing, may_close, is_closed = threading.Event(), threading.Event(), threading.Event()
    waiting, interrupts = threading.get_ident(), list[int]()

    class Slow(Noted):
        def close(self) -> None:
            closing.set()
            assert may_close.wait(10)
            is_closed.set()

    def interrupt() -> None:
        assert closing.wait(10)
        while not interrupts:  # one that comes right before the wait is not noticed in it
            signal.pthread_kill(waiting, signal.SIGINT)
            time.sleep(0.01)

    def interrupted(number: int, _: object) -> None:
        interrupts.append(number)
        if len(interrupts) == 1:
            raise KeyboardInterrupt

    aside, before = BackgroundSink([Slow()]), signal.signal(signal.SIGINT, interrupted)
    thread = threading.Thread(target=interrupt)
    thread.start()
    aside.__enter__()
    try:
        with pytest.raises(KeyboardInterrupt):
            aside.__exit__(None, None, None)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
        may_close.set()
    assert is_closed.wait(10)


def test_a_fork_of_the_process_leaves_the_views_to_it() -> None:
    view = Noted()
    with BackgroundSink([view]) as aside:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # that forks are not liked
            child = os.fork()
        if child == 0:
            aside.emit(Notice("of the child"))
            aside.__exit__(None, None, None)
            os._exit(view.closed + len(view.told))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (view.told, view.closed) == ([], 1)


def test_a_clock_that_is_set_meanwhile_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    class Timed(Noted):
        def take(self, at: float, event: Event) -> None:
            times.append(at)

    times: list[float] = []
    with BackgroundSink([Timed()]) as aside:
        aside.emit(Notice("before"))
        monkeypatch.setattr(time, "time", lambda: 0.0)
        aside.emit(Notice("after"))
    before, after = times
    assert before <= after < before + 60


def test_late_events_are_sorted_by_their_time() -> None:
    class Timed(Noted):
        def take(self, at: float, event: Event) -> None:
            super().take(at, event)
            times.append(at)

    times: list[float] = []
    view, direct = Timed(), LiveState()
    with FanOutSink([direct, BackgroundSink([view])]) as watched:
        now = time.monotonic()
        watched.emit(Notice("second"))
        watched.emit_at(now - 1000, Notice("first"))
        watched.emit_at(now + 1000, Notice("no later than now"))
        watched.emit(Notice("last"))
        assert direct.notice == "last"  # those who do not ask for times hear it at once
    assert [event.text for event in view.told if isinstance(event, Notice)] == [
        "first",
        "second",
        "no later than now",
        "last",
    ]
    assert 999 < times[1] - times[0] < 1001
    assert times == sorted(times)


def test_times_never_go_back_for_a_view_whatever_comes_late() -> None:
    class Timed(Noted):
        def take(self, at: float, event: Event) -> None:
            times.append(at)
            taken.set()

    times: list[float] = []
    taken = threading.Event()
    with BackgroundSink([Timed()]) as aside:
        aside.emit(Notice("now"))
        assert taken.wait(10)
        aside.emit_at(time.monotonic() - 1000, Notice("too late"))
    assert times == [times[0], times[0]]


class Opened:
    """A sink that is opened and closed."""

    def __init__(self, *, opens: bool = True) -> None:
        self.opens = opens
        self.exits: list[type[BaseException] | None] = []

    def emit(self, event: Event) -> None: ...

    def __enter__(self) -> None:
        if not self.opens:
            raise OSError("no screen")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.exits.append(kind)


def test_sinks_that_were_opened_are_closed_where_another_cannot_be() -> None:
    first = Opened()
    with pytest.raises(OSError, match="no screen"), FanOutSink([first, Opened(opens=False)]):
        raise AssertionError("it was not opened")
    assert first.exits == [OSError]


def test_sinks_are_informed_how_a_run_ended() -> None:
    first = Opened()
    with pytest.raises(ValueError, match="bad"), FanOutSink([first, Opened()]):
        raise ValueError("bad")
    assert first.exits == [ValueError]


class Broken(Opened):
    """One that can neither be told nor closed."""

    def emit(self, event: Event) -> None:
        raise ValueError("no words for it")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        super().__exit__(kind)
        raise OSError("no screen")


async def test_a_view_that_fails_neither_ends_the_run_nor_the_other_views(caplog: pytest.LogCaptureFixture) -> None:
    broken, state, view = Broken(), LiveState(), Noted()
    backend = ScriptedBackend(lambda _: say("fine"))
    results = await BatchAgent.run(task="{it}", inputs=["a", "b"], backend=backend, events=[broken, state, view])
    assert (len(results), len(results.failed)) == (2, 0)
    assert state.run_stats.done == 2
    assert sum(type(event).__name__ == "AgentFinished" for event in view.told) == 2
    assert broken.exits == [None]
    said = [record.getMessage() for record in caplog.records if record.name == "batch_agent"]
    assert said == ["The event sink Broken failed and gets no more events", "Closing the event sink Broken failed"]


def test_a_sink_that_failed_in_one_run_gets_the_events_of_the_next() -> None:
    broken = Broken()
    watched = combine_sinks(broken)
    assert isinstance(watched, FanOutSink)
    for _ in range(2):
        with watched:
            watched.emit(Notice("hear, hear"))
            watched.emit(Notice("again"))
    assert broken.exits == [None, None]


def test_an_object_that_is_not_a_sink_is_rejected_by_name() -> None:
    with pytest.raises(SpecError, match="got 7"):
        combine_sinks([Opened(), 7])  # type: ignore[list-item]


class Closing:
    """Closes only when its loop has time."""

    def __init__(self) -> None:
        self.loop_had_time: bool | None = None
        self._loop = asyncio.get_running_loop()

    def take(self, at: float, event: Event) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        called = threading.Event()
        self._loop.call_soon_threadsafe(called.set)
        self.loop_had_time = called.wait(5)


async def test_a_view_that_takes_its_time_to_close_does_not_hold_up_the_loop() -> None:
    view = Closing()
    await BatchAgent.run(task="{it}", inputs=["a"], backend=ScriptedBackend(by_turn(say("done"))), events=[view])
    assert view.loop_had_time
