"""A call that changes something is made once, wherever the process is killed. What is not known is said to be so."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, Results, Tool
from batch_agent.core.messages import ToolCall, ToolResults
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, by_turn, call, calls, say

NURSERY = """
import asyncio, concurrent.futures.thread, gc, importlib.resources, json, os, random, signal, sys, time
from pathlib import Path
import batch_agent.observe.report.run_view, batch_agent.observe.report.html  # before the fork
import batch_agent.tools.agent_tools
from batch_agent import BatchAgent, Tool
from batch_agent.core.messages import ToolCall, ToolResults
from batch_agent.store.sqlite import SqliteStore
from batch_agent.testing import ScriptedBackend, by_turn, calls, say

seen, plan, stores = [], {}, []
batch_agent.tools.agent_tools.LAST_WRITES = 60.0  # a busy machine has the time that it needs

def moment(name):
    "The process may end here."
    seen.append(name)
    if len(seen) == plan.get("at") or name == plan.get("named"):
        if plan.get("drained"):
            stores[-1]._flush()
            time.sleep(0.05)  # what was recorded is on disk
        os.kill(os.getpid(), plan.get("signal", signal.SIGKILL))

def watched(method):
    def watching(self, key, *facts):
        stores.append(self)
        what = f"{method.__name__} {type(facts[0]).__name__ if facts else ''}"
        moment(f"before {what}")
        method(self, key, *facts)
        moment(f"after {what}")
    return watching

SqliteStore.record, SqliteStore.restart = watched(SqliteStore.record), watched(SqliteStore.restart)

def note(line):
    with open(plan["folder"] + "/effects", "a") as file:
        file.write(line + "\\n")

async def made(line):
    moment("called")
    await asyncio.sleep(0.001)
    moment("before effect")
    note(line)
    moment("after effect")
    await asyncio.sleep(0.001)
    moment("made")
    return "put " + line

@Tool.define
async def put(line: str) -> str:
    return await made(line)

@Tool.define(idempotency_arg="slip")
async def pay(line: str, slip: str) -> str:
    await made(line + " " + slip)
    return "put " + line

def ask(tool, line):
    return ToolCall("", tool, json.dumps({"line": line}))

def script(request):
    who, tool = request.messages[0].text, plan["tool"]
    answer = "7" if plan.get("is_good", True) else "no number"
    return by_turn(calls(ask(tool, who + "1")), calls(ask(tool, who + "2"), ask(tool, who + "3")), say(answer))(request)

def run():
    results = BatchAgent.run_sync(
        task="{it}", inputs=list("abc"), tools=[put, pay], output_schema=int, max_retries=0,
        backend=ScriptedBackend(script), checkpoint_dir=plan["folder"] + "/checkpoint", progress=False,
    )
    told = [
        (r.call.arguments, r.content, r.is_error, r.source)
        for result in results for message in result.transcript if isinstance(message, ToolResults)
        for r in message.results
    ]
    Path(plan["folder"] + "/told").write_text(json.dumps([[r.output for r in results], told, seen]))

def live():
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the traceback of Ctrl-C is expected
    try:
        run()
    except KeyboardInterrupt:
        os._exit(130)
    os._exit(0)

gc.freeze()  # a collector that went through all of this in each child would copy it
for line in sys.stdin:
    plan = json.loads(line)
    child = os.fork()
    if child == 0:
        live()
    if "after" in plan:
        time.sleep(plan["after"])
        os.kill(child, signal.SIGKILL)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@dataclass
class Nursery:
    """A process that has everything imported, and whose children are killed."""

    process: "subprocess.Popen[str]"

    def run(self, folder: Path, **plan: Any) -> int:
        """Runs the three agents until they are done or the plan ends them; says how the process ended."""
        folder.mkdir(exist_ok=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"folder": str(folder), "tool": "put"} | plan) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def finish(self, folder: Path, **plan: Any) -> tuple[list[Any], list[tuple[str, str, bool, str]], list[str]]:
        """Runs to the end: outputs, what the model was told of its calls, and the moments that were passed."""
        assert self.run(folder, **plan) == 0
        outputs, told, seen = json.loads((folder / "told").read_text())
        return outputs, [tuple(one) for one in told], seen


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    command = [sys.executable, "-c", NURSERY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Nursery(process)
        assert process.stdin is not None
        process.stdin.close()


LINES = [f"{who}{n}" for who in "abc" for n in (1, 2, 3)]


def effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return file.read_text().splitlines() if file.exists() else []


def check_told(folder: Path, told: list[tuple[str, str, bool, str]]) -> int:
    """Every call has an answer that is true; says of how many it is not known whether they were made."""
    made = Counter(effects(folder))
    assert max(made.values(), default=1) == 1, "a doubled write"
    unknown = 0
    assert sorted(json.loads(arguments)["line"] for arguments, *_ in told) == LINES
    for arguments, content, is_error, source in told:
        line = json.loads(arguments)["line"]
        if is_error:
            assert "It is not known whether this call was made" in content
            assert source == "restored"
            unknown += 1
        else:
            assert content == f"put {line}"
            assert made[line] == 1, "a lost write"
    return unknown


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_kill_at_any_point_repeats_no_write_and_loses_none(nursery: Nursery, tmp_path: Path) -> None:
    _, _, seen = nursery.finish(tmp_path / "whole")
    unknown = 0
    for trial, at in enumerate(range(1, len(seen), max(1, len(seen) // 30))):
        folder = tmp_path / str(trial)
        assert nursery.run(folder, at=at, drained=bool(trial % 2)) == 9
        nursery.run(folder, at=1 + at * 7 % 41)  # and in the middle of going on
        outputs, told, _ = nursery.finish(folder)
        assert outputs == [7, 7, 7]
        unknown += check_told(folder, told)
    assert unknown > 10


@pytest.mark.slow
def test_a_kill_at_a_random_time_repeats_no_write_and_loses_none(nursery: Nursery, tmp_path: Path) -> None:
    for trial in range(10):
        folder = tmp_path / str(trial)
        nursery.run(folder, after=0.01 + 0.005 * trial)
        outputs, told, _ = nursery.finish(folder)
        assert outputs == [7, 7, 7]
        check_told(folder, told)


@pytest.mark.slow
def test_a_write_that_ended_before_it_was_settled_is_not_repeated_and_the_model_is_informed(
    nursery: Nursery, tmp_path: Path
) -> None:
    for named in ("called", "before effect", "after effect", "made", "before record Settled"):
        folder = tmp_path / named
        assert nursery.run(folder, named=named) == 9
        was_made = effects(folder)
        _, told, _ = nursery.finish(folder)
        assert check_told(folder, told) >= 1
        for arguments, _, is_error, _ in told:
            line = json.loads(arguments)["line"]
            assert not is_error or effects(folder).count(line) == was_made.count(line)


def test_a_write_that_was_not_claimed_is_made_after_the_resume(nursery: Nursery, tmp_path: Path) -> None:
    assert nursery.run(tmp_path, named="before record Claimed") == 9
    _, told, _ = nursery.finish(tmp_path)
    assert check_told(tmp_path, told) == 0
    assert sorted(effects(tmp_path)) == LINES


def test_a_settled_write_is_answered_from_the_record(nursery: Nursery, tmp_path: Path) -> None:
    assert nursery.run(tmp_path, named="before record Returned", drained=True) == 9
    _, told, _ = nursery.finish(tmp_path)
    assert any(source == "restored" and not is_error for _, _, is_error, source in told)
    check_told(tmp_path, told)


@pytest.mark.slow
def test_a_write_with_an_idempotency_key_is_repeated_with_the_same_key(nursery: Nursery, tmp_path: Path) -> None:
    _, _, seen = nursery.finish(tmp_path / "whole", tool="pay")
    repeated = 0
    for trial, at in enumerate(range(2, len(seen), max(1, len(seen) // 15))):
        folder = tmp_path / str(trial)
        assert nursery.run(folder, tool="pay", at=at, drained=bool(trial % 2)) == 9
        outputs, told, _ = nursery.finish(folder, tool="pay")
        assert outputs == [7, 7, 7]
        assert not any(is_error for _, _, is_error, _ in told)
        lines = [line.split() for line in effects(folder)]
        slips = {line: {slip for other, slip in lines if other == line} for line in LINES}
        assert [len(slips[line]) for line in LINES] == [1] * len(LINES)
        assert len(set().union(*slips.values())) == len(LINES)
        repeated += len(lines) - len(LINES)
    assert repeated > 0


@pytest.mark.slow
def test_ctrl_c_during_a_write_lets_it_end_and_repeats_none(nursery: Nursery, tmp_path: Path) -> None:
    _, _, seen = nursery.finish(tmp_path / "whole")
    ended = Counter[int]()
    for trial, at in enumerate(range(3, len(seen), len(seen) // 8)):
        folder = tmp_path / str(trial)
        ended[nursery.run(folder, at=at, signal=2)] += 1
        outputs, told, _ = nursery.finish(folder)
        assert outputs == [7, 7, 7]
        assert check_told(folder, told) == 0
        assert sorted(effects(folder)) == LINES
    assert ended[130 << 8] > 0


def test_failed_agents_that_run_again_do_not_repeat_their_writes(nursery: Nursery, tmp_path: Path) -> None:
    for _ in range(2):
        outputs, _, _ = nursery.finish(tmp_path, is_good=False)
        assert outputs == [None, None, None]
        assert sorted(effects(tmp_path)) == LINES
    outputs, told, _ = nursery.finish(tmp_path)
    assert outputs == [7, 7, 7]
    assert check_told(tmp_path, told) == 0
    assert {source for *_, source in told} == {"restored"}


@pytest.mark.slow
def test_failed_agents_killed_while_they_run_again_do_not_repeat_their_writes(nursery: Nursery, tmp_path: Path) -> None:
    moments = ["before restart list", "after restart list", "before record Replied", "before record Returned"]
    for number, named in enumerate(moments):
        folder = tmp_path / str(number)
        nursery.finish(folder, is_good=False)
        assert nursery.run(folder, named=named, drained=True) == 9
        outputs, told, _ = nursery.finish(folder)
        assert outputs == [7, 7, 7]
        assert check_told(folder, told) == 0


def test_the_writes_of_a_failed_agent_are_on_record_at_every_moment(nursery: Nursery, tmp_path: Path) -> None:
    nursery.finish(tmp_path, is_good=False)
    assert nursery.run(tmp_path, named="after restart list", drained=True) == 9
    _, told, _ = nursery.finish(tmp_path)
    assert check_told(tmp_path, told) == 0


async def run(backend: ScriptedBackend, folder: Path | None, **options: Any) -> AgentResult:
    results: Results = await BatchAgent.run(
        task="{it}", inputs=["a"], backend=backend, checkpoint_dir=folder, **options
    )
    [result] = results
    return result


async def test_another_write_of_a_later_attempt_has_another_idempotency_key(tmp_path: Path) -> None:
    slips: dict[str, str] = {}

    @Tool.define(idempotency_arg="slip")
    async def pay(line: str, slip: str) -> str:
        slips[line] = slip
        return "paid"

    options: dict[str, Any] = {"tools": [pay], "output_schema": int, "max_retries": 0}
    assert not (await run(ScriptedBackend(by_turn(call("pay", line="rent"), say("no"))), tmp_path, **options)).ok
    assert (await run(ScriptedBackend(by_turn(call("pay", line="food"), say("7"))), tmp_path, **options)).output == 7
    assert slips["rent"] != slips["food"]


def paying(slips: list[str]) -> Tool:
    @Tool.define(idempotency_arg="slip")
    async def pay(line: str, slip: str) -> str:
        slips.append(slip)
        return "paid"

    return pay


async def test_separate_runs_have_different_idempotency_keys(tmp_path: Path) -> None:
    slips: list[str] = []
    backend = ScriptedBackend(by_turn(call("pay", line="rent"), say("done")))
    for folder in (tmp_path / "january", tmp_path / "february", None, None):
        await run(backend, folder, tools=[paying(slips)])
    assert len(slips) == len(set(slips)) == 4


async def test_a_resumed_run_has_the_same_idempotency_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batch_agent.tools.agent_tools.LAST_WRITES", 0.01)
    slips: list[str] = []

    @Tool.define(idempotency_arg="slip")
    async def pay(line: str, slip: str) -> str:
        slips.append(slip)
        if len(slips) == 1:
            await asyncio.Event().wait()
        return "paid"

    backend = ScriptedBackend(by_turn(call("pay", line="rent"), say("done")))
    late = await run(backend, tmp_path, tools=[pay], timeout_per_agent=1.0)
    assert late.error is not None
    assert (await run(backend, tmp_path, tools=[pay])).ok
    assert len(slips) == 2
    assert len(set(slips)) == 1


async def test_a_repeated_write_of_a_later_attempt_has_a_new_idempotency_key(tmp_path: Path) -> None:
    # Without the number of the life in it, the key of the same call at the same turn would be that of an earlier life,
    # whose call was already given to another call of this one: a service that keeps the promise would drop it.
    slips: list[str] = []

    @Tool.define(effect="write", idempotency_arg="slip")
    async def pay(line: str, slip: str) -> str:
        slips.append(slip)
        return "paid"

    @Tool.define(effect="read")
    async def look() -> str:
        return "seen"

    options: dict[str, Any] = {"tools": [pay, look], "output_schema": int, "max_retries": 0}
    rent = call("pay", line="rent")
    assert not (await run(ScriptedBackend(by_turn(call("look"), rent, say("no"))), tmp_path, **options)).ok
    result = await run(ScriptedBackend(by_turn(rent, rent, say("7"))), tmp_path, **options)
    assert [record.source for record in result.tool_calls] == ["restored", "executed"]
    assert len(slips) == len(set(slips)) == 2


async def test_a_resumed_agent_has_the_writes_of_its_history(tmp_path: Path) -> None:
    seen: list[tuple[str, ...]] = []

    @Tool.define(effect="stateful", history_arg="before")
    async def turn_page(to: str, before: tuple[str, ...]) -> str:
        seen.append(before)
        return f"page {to}"

    turns: list[Answer] = [call("turn_page", to="1"), BackendError(ErrorKind.SERVER, "down")]
    await run(ScriptedBackend(by_turn(*turns)), tmp_path, tools=[turn_page], max_retries=0)
    turns[1:] = [call("turn_page", to="2"), say("done")]
    assert (await run(ScriptedBackend(by_turn(*turns)), tmp_path, tools=[turn_page], max_retries=0)).ok
    assert seen == [(), ('{"to":"1"}',)]


async def test_a_later_attempt_that_requests_a_write_twice_gets_it_twice(tmp_path: Path) -> None:
    made = 0

    @Tool.define
    async def add() -> str:
        nonlocal made
        made += 1
        return f"added {made}"

    options: dict[str, Any] = {"tools": [add], "output_schema": int, "max_retries": 0}
    await run(ScriptedBackend(by_turn(call("add"), say("no"))), tmp_path, **options)
    result = await run(ScriptedBackend(by_turn(call("add"), call("add"), say("7"))), tmp_path, **options)
    assert [record.source for record in result.tool_calls] == ["restored", "executed"]
    assert made == 2
    await run(ScriptedBackend(by_turn(say("7"))), tmp_path, **options)
    assert made == 2


async def test_later_attempts_inherit_the_writes_of_all_earlier_attempts(tmp_path: Path) -> None:
    made: Counter[str] = Counter()

    @Tool.define
    async def put(line: str) -> str:
        made[line] += 1
        return f"put {line}"

    options: dict[str, Any] = {"tools": [put], "output_schema": int, "max_retries": 0, "max_turns": 9}
    lives = ["a", "ab", "abc", "cba"]
    for number, life in enumerate(lives):
        last = say("7" if number == 3 else "no")
        result = await run(
            ScriptedBackend(by_turn(*(call("put", line=line) for line in life), last)), tmp_path, **options
        )
    assert result.output == 7
    assert made == {"a": 1, "b": 1, "c": 1}


async def test_a_write_interrupted_by_the_agent_timeout_is_left_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_agent.tools.agent_tools.LAST_WRITES", 0.01)
    made = 0

    @Tool.define
    async def put() -> str:
        nonlocal made
        made += 1
        await asyncio.Event().wait()
        return "never"

    def script(request: Request) -> Answer:
        heard = [message for message in request.messages if isinstance(message, ToolResults)]
        return say(heard[0].results[0].content) if heard else calls(ToolCall("", "put", "{}"))

    late = await run(ScriptedBackend(script), tmp_path, tools=[put], timeout_per_agent=1.0)
    assert late.error is not None
    assert late.error.kind is ErrorKind.AGENT_TIMEOUT
    result = await run(ScriptedBackend(script), tmp_path, tools=[put])
    assert "not known whether this call was made" in result.text
    assert made == 1


@pytest.mark.slow
async def test_an_agent_timeout_ends_the_agent_even_if_its_tool_swallows_the_cancellation(tmp_path: Path) -> None:
    @Tool.define(effect="stateful")
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("interrupted") from None
        return "never"

    backend = ScriptedBackend(by_turn(call("work"), say("done")))
    late = await run(backend, tmp_path, tools=[work], timeout_per_agent=1.0)
    assert late.error is not None
    assert late.error.kind is ErrorKind.AGENT_TIMEOUT
