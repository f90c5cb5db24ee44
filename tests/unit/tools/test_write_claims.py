"""A write is claimed when its function is about to be entered, and not before; what was not entered is taken back."""

import asyncio
import threading
from typing import Any, ParamSpec

import orjson
import pytest
from tests.support.virtual_time import virtual

from batch_agent import StoreError, Tool
from batch_agent.core.messages import ToolCall, ToolResult
from batch_agent.core.protocols.tool_set import CallHistory
from batch_agent.tools import ToolExecutor, as_tool
from batch_agent.tools.write_claims import WriteClaim

P = ParamSpec("P")


class Notes:
    """A journal that can be read, and takes a while to write."""

    is_durable = True

    def __init__(self, seconds: float = 0.1) -> None:
        self.claimed: list[str] = []
        self.withdrawn: list[str] = []
        self.settled: dict[str, str] = {}
        self.failure: StoreError | None = None
        self._seconds = seconds

    async def identity(self) -> str:
        return "run"

    async def claim(self, call: ToolCall) -> None:
        self.claimed.append(call.id)
        await asyncio.sleep(self._seconds)
        if self.failure is not None:
            raise self.failure

    def withdraw(self, call: ToolCall) -> None:
        self.withdrawn.append(call.id)

    def settle(self, result: ToolResult) -> None:
        self.settled[result.call.id] = result.content

    @property
    def unknown(self) -> set[str]:
        """What a later process would have to call unknown."""
        return set(self.claimed) - set(self.withdrawn) - set(self.settled)


def executor_of(tool: Any, timeout: float | None = None) -> ToolExecutor:
    return ToolExecutor([as_tool(tool)], timeout=timeout, max_tokens=1000)


def ask(executor: ToolExecutor, notes: Notes, n: int, past: CallHistory | None = None) -> "asyncio.Task[Any]":
    call = ToolCall(str(n), "put", orjson.dumps({"n": n}).decode())
    return asyncio.create_task(executor.session(f"agent {n}", notes).results([call], past))


async def stop(asked: "list[asyncio.Task[Any]]") -> None:
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)


@pytest.mark.parametrize("options", [{"max_concurrent": 2}, {"rate_limit": 2, "burst": 2}], ids=["limit", "rate"])
@virtual
async def test_calls_that_wait_for_their_turn_are_not_claimed(options: dict[str, Any]) -> None:
    entered: list[int] = []

    @Tool.define(**options)
    async def put(n: int) -> str:
        entered.append(n)
        await asyncio.sleep(1)
        return "put"

    notes, executor = Notes(), executor_of(put)
    asked = [ask(executor, notes, n) for n in range(20)]
    await asyncio.sleep(0.2)
    assert entered == [0, 1]
    assert notes.claimed == ["0", "1"]
    await stop(asked)
    assert entered == [0, 1]
    assert notes.unknown == set()
    assert notes.settled == {"0": "put", "1": "put"}  # what was entered came to its end
    await executor.aclose()


@virtual
async def test_a_claim_whose_call_is_cancelled_meanwhile_is_taken_back() -> None:
    @Tool.define(max_concurrent=2)
    async def put(n: int) -> str:
        raise AssertionError("it was entered")

    notes, executor = Notes(seconds=1.0), executor_of(put)
    asked = [ask(executor, notes, n) for n in range(4)]
    await asyncio.sleep(0.5)
    await stop(asked)
    assert (notes.claimed, notes.withdrawn, notes.settled) == (["0", "1"], ["0", "1"], {})
    await executor.aclose()


@virtual
async def test_a_write_that_does_not_end_in_time_after_a_stop_is_left_unknown() -> None:
    cancelled: list[int] = []

    @Tool.define
    async def put(n: int) -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.append(n)
        return "put"

    notes, executor = Notes(), executor_of(put)
    asked = ask(executor, notes, 1)
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await stop([asked])
    assert asyncio.get_running_loop().time() - began == pytest.approx(3.0)
    assert cancelled == [1]
    assert notes.unknown == {"1"}
    await executor.aclose()


@virtual
async def test_a_second_stop_does_not_wait() -> None:
    @Tool.define
    async def put(n: int) -> str:
        await asyncio.sleep(3600)
        return "put"

    notes, executor = Notes(), executor_of(put)
    asked = ask(executor, notes, 1)
    await asyncio.sleep(1)
    asked.cancel()
    await asyncio.sleep(0.1)
    began = asyncio.get_running_loop().time()
    await stop([asked])
    assert asyncio.get_running_loop().time() == began
    assert notes.unknown == {"1"}
    await executor.aclose()


@virtual
async def test_calls_of_a_batch_are_claimed_when_it_is_made_and_who_left_is_not_asked_for() -> None:
    batches: list[list[int]] = []

    @Tool.batchable(key_arg="n", name="put", effect="write", max_concurrent=1, max_batch=3)
    async def put(numbers: list[int]) -> list[str]:
        batches.append(numbers)
        await asyncio.sleep(1)
        return [f"put {n}" for n in numbers]

    notes, executor = Notes(), executor_of(put)
    asked = [ask(executor, notes, n) for n in range(9)]
    await asyncio.sleep(0.5)
    assert notes.claimed == ["0", "1", "2"]
    await stop([asked[3], asked[7]])
    await asyncio.sleep(0.65)
    await stop([asked[4]])  # while the second batch is claimed
    await asyncio.wait(asked)
    assert batches == [[0, 1, 2], [5], [6, 8]]
    assert notes.withdrawn == ["4"]
    assert notes.unknown == set()
    await executor.aclose()


@virtual
async def test_a_journal_that_fails_is_no_failure_of_the_tool() -> None:
    @Tool.define(idempotent=True, retries=2, retry_on=(Exception,), effect="write")
    async def put(n: int) -> str:
        raise AssertionError("it was entered")

    notes, executor = Notes(), executor_of(put)
    notes.failure = StoreError("the disk is full")
    asked = ask(executor, notes, 1)
    await asyncio.wait([asked])
    assert isinstance(asked.exception(), StoreError)
    await executor.aclose()


@virtual
async def test_a_write_that_is_tried_again_is_claimed_once() -> None:
    tries = 0

    @Tool.define(idempotent=True, retries=2, retry_on=(ConnectionError,), effect="write")
    async def put(n: int) -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError("lost")
        return "put"

    notes, executor = Notes(), executor_of(put)
    [result] = await ask(executor, notes, 1)
    assert (result.content, notes.claimed, tries) == ("put", ["1"], 3)
    await executor.aclose()


async def test_sync_writes_that_wait_for_a_thread_are_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batch_agent.tools.agent_tools.LAST_WRITES", 60.0)  # a busy machine has the time that it needs
    go_on, entered = threading.Event(), []

    def put(n: int) -> str:
        entered.append(n)
        go_on.wait(60)
        return "put"

    notes, executor = Notes(0.0), executor_of(put)
    asked = [ask(executor, notes, n) for n in range(200)]
    async with asyncio.timeout(30):
        while len(entered) < 64:
            await asyncio.sleep(0.001)
    for task in asked:
        task.cancel()
    go_on.set()
    await asyncio.wait(asked)
    assert len(entered) == 64
    assert len(notes.settled) == 64
    assert notes.unknown == set()
    await executor.aclose()


@virtual
async def test_a_write_that_timed_out_is_told_as_unknown() -> None:
    @Tool.define(timeout=1)
    async def put(n: int) -> str:
        await asyncio.sleep(5)
        return "put"

    notes, executor = Notes(), executor_of(put)
    [result] = await ask(executor, notes, 1)
    assert result.is_error
    assert "It is not known whether this call was made" in result.content
    assert notes.settled == {"1": result.content}
    await executor.aclose()


def test_a_thread_and_the_loop_never_both_have_a_call() -> None:
    for _ in range(300):
        claim, begin = WriteClaim(None, ToolCall("1", "put", "{}")), threading.Barrier(2)
        entered: list[bool] = []

        def enter(claim: WriteClaim = claim, entered: list[bool] = entered, begin: threading.Barrier = begin) -> None:
            begin.wait()
            entered.append(claim.enter())

        thread = threading.Thread(target=enter)
        thread.start()
        begin.wait()
        is_given_up = claim.give_up()
        thread.join()
        assert entered == [not is_given_up]
