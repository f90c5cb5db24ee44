"""Leak check: a test of the fast suite fails that leaves a thread, a child process or an asyncio task behind.

What a fixture of a wider scope starts may stay until that fixture ends."""

import asyncio
import gc
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from .process_table import own_children

_SHORT_GRACE_SECONDS = 0.5
_GRACE_SECONDS = 10.0
"""A thread or process that was told to end may need this long on a busy machine."""

_MAY_STAY = {
    "asyncio_": "of the executor of an event loop, and ends with it: some loops serve the tests of a module",
    "Dummy-": "of a C library that calls Python",
    "asyncio-waitpid-": "asyncio's own, for a process whose end nobody awaits",
}
"""Beginnings of the names of threads that may outlive a test, each with its reason."""

_UNCHECKED = ("slow", "nightly", "engines", "browser")
"""Suites whose tests are about processes that are killed, and about engines that start what they want."""

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})


class LeakCheck:
    """Plugin that compares what runs before and after each test."""

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()
        self._children: set[int] = set()
        self._tasks: list[str] = []
        self._has_started_process = False
        sys.addaudithook(self._on_audit)
        self._watch_runners()

    def _on_audit(self, event: str, _: tuple[Any, ...]) -> None:
        if event in _STARTS:
            self._has_started_process = True

    def _watch_runners(self) -> None:
        """A runner cancels the tasks that are left when it closes, and says nothing. After an error, such as Ctrl-C, it
        is expected to."""
        runners: Any = asyncio.runners
        cancel_all = runners._cancel_all_tasks

        def cancel_and_note(loop: asyncio.AbstractEventLoop) -> None:
            if sys.exc_info()[0] is None:
                self._tasks += [repr(task) for task in asyncio.all_tasks(loop) if not _closes_generator(task)]
            cancel_all(loop)

        runners._cancel_all_tasks = cancel_and_note

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._threads = set(threading.enumerate())
        self._tasks = []
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = set(threading.enumerate())
        value = yield
        self._threads |= set(threading.enumerate()) - before
        if self._has_started_process:
            self._children |= own_children()
        return value

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        yield
        if any(item.get_closest_marker(suite) for suite in _UNCHECKED):
            self._children |= own_children()
            return
        threads = [thread for thread in threading.enumerate() if thread not in self._threads and not _may_stay(thread)]
        children = own_children() - self._children if self._has_started_process else set()
        self._has_started_process = False
        self._children |= children
        for generation, seconds in (1, _SHORT_GRACE_SECONDS), (2, _GRACE_SECONDS):
            if threads or children:
                gc.collect(generation)  # some end with the object that they serve
            threads = [thread for thread in threads if not _thread_ends(thread, seconds)]
            children = {pid for pid in children if not _process_ends(pid, seconds)}
        left = [f"thread {thread.name!r}" for thread in threads] + [f"process {pid}" for pid in children]
        left += [f"task {task}" for task in self._tasks]
        if left:
            pytest.fail(f"The test leaves behind: {', '.join(left)}.", pytrace=False)


def _closes_generator(task: "asyncio.Task[Any]") -> bool:
    """Whether the task is asyncio's own, for an async generator that a loop left early."""
    return type(task.get_coro()).__name__ == "async_generator_athrow"


def _may_stay(thread: threading.Thread) -> bool:
    return thread.name.startswith(tuple(_MAY_STAY))


def _thread_ends(thread: threading.Thread, seconds: float) -> bool:
    thread.join(seconds)
    return not thread.is_alive()


def _process_ends(pid: int, seconds: float) -> bool:
    with suppress(ProcessLookupError):
        watched = os.pidfd_open(pid)
        try:
            return bool(select.select([watched], [], [], seconds)[0])
        finally:
            os.close(watched)
    return True
