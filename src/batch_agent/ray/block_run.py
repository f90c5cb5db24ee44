"""Runs of blocks of rows, with resources that a process opens once for all blocks."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from ..aio import run_event_loop, ungrouped
from ..core.coordinator import Coordinator
from ..core.errors import BatchAgentError, StoreError
from ..core.protocols.store import Store
from ..run.plan_check import check_plan
from ..run.resource_opener import open_resources
from ..run.resources import RunResources
from ..run.runner import Put, execute
from ..run.setup import RunSetup

_CLOSE_TIMEOUT = 5.0
_Result = TypeVar("_Result")
Work = Callable[[RunResources], Awaitable[_Result]]


async def run_block(resources: RunResources, name: str, rows: Sequence[Any], store: Store, put: Put) -> None:
    """Runs an agent for each row and sends the results to `put`, with the indices of the rows. Agents with facts in
    `store` continue from them; the store also keeps the new facts.

    `resources`: opened for a distributed run without inputs; their backend, limits, budget and tools serve all blocks
    of the process, including concurrent ones. `name`: distinguishes agents with equal rows. Raises SpecError
    (PlanMismatch if the store belongs to another question), RunStopped and StoreError."""
    spec = replace(resources.setup.spec, inputs=rows)
    setup = replace(resources.setup, spec=spec, stage=name, input_fields=None)
    inputs, layout = await setup.layout_inputs()
    plan = setup.compile(resources.tools, layout, resources.server.traits, await store.plan())
    await check_plan(store, plan.description, rerun=spec.plan_changed == "rerun")
    block = replace(
        resources,
        setup=setup,
        inputs=inputs,
        plan=plan,
        store=store,
        events=None,
        cluster=None,
        agents=len(rows),
        counts={},
    )
    await execute(block, put)


class BlockSession:
    """Resources of a distributed run, open in an event loop on its own thread, for work that other threads submit. They
    are opened at once, and closed by `close` or by an error."""

    def __init__(self, setup: RunSetup, coordinator: Coordinator) -> None:
        """`setup`: a setup without inputs (`input_fields` is empty). `coordinator`: shared by all processes of the
        run."""
        self._setup = setup
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._unfinished: set[Future[Any]] = set()
        self._failure: BaseException | None = None
        self._queue: asyncio.Queue[tuple[Work[Any], Future[Any]] | None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[is_ready], name="batch-agent-blocks", daemon=True)
        self._thread.start()
        is_ready.wait()

    @property
    def has_ended(self) -> bool:
        return self._failure is not None

    def submit(self, work: Work[_Result]) -> "Future[_Result]":
        """Starts `work` in the event loop as soon as the resources are open. The future gets its result, or the error
        that ended the session. Cancelling the future does not cancel work that has begun."""
        future: Future[_Result] = Future()
        with self._lock:
            if self._failure is not None:
                future.set_exception(self._failure)
                return future
            self._unfinished.add(future)
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has just ended: the future gets the reason
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (work, future))
        return future

    def close(self) -> None:
        """Cancels running work and closes the resources. Waits for that, but only for some seconds."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._queue.put_nowait, None)
        self._thread.join(_CLOSE_TIMEOUT)

    def _run(self, is_ready: threading.Event) -> None:
        """Runs in the thread."""
        failure: BaseException = StoreError("The session has been closed.")
        try:
            run_event_loop(self._serve(is_ready))
        except BaseException as error:  # noqa: BLE001 - it is raised where results are awaited
            failure = error
        with self._lock:
            self._failure = failure
            unfinished = list(self._unfinished)
        for future in unfinished:
            if not future.done():
                future.set_exception(failure)

    async def _serve(self, is_ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        is_ready.set()
        async with open_resources([self._setup], None, self._coordinator, submits=False) as [resources]:
            with ungrouped():
                async with asyncio.TaskGroup() as group:  # inside of the resources: their loss cancels the work
                    running: set[asyncio.Task[None]] = set()
                    while (item := await self._queue.get()) is not None:
                        task = group.create_task(self._work(resources, *item))
                        running.add(task)
                        task.add_done_callback(running.discard)
                    for task in running:
                        task.cancel()

    async def _work(self, resources: RunResources, work: Work[Any], future: "Future[Any]") -> None:
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(await work(resources))
        except BatchAgentError as error:
            future.set_exception(error)
        finally:
            if future.done():  # otherwise the end of the session sets its error
                with self._lock:
                    self._unfinished.discard(future)
