"""What a user's code raises is a failure of that code, whatever its class: it never ends the run, or the loop."""

import asyncio
import logging
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from batch_agent import AgentResult, BatchAgent, ErrorKind, Tool
from batch_agent.core.events import Event
from batch_agent.core.messages import ToolResults
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, call, say


class Panic(BaseException):
    """As libraries in Rust raise it."""


ODD = [Panic("boom"), GeneratorExit("boom"), BaseExceptionGroup("boom", [SystemExit(3)])]
odd = pytest.mark.parametrize("error", [*ODD, SystemExit("boom")], ids=lambda error: type(error).__name__)


def script(request: Request) -> Answer:
    """Calls the tool, and says what it gave."""
    heard = [each for each in request.messages if isinstance(each, ToolResults)]
    who = request.messages[0]
    return say(heard[0].results[0].content) if heard else call("use", who=getattr(who, "text", ""))


def run(inputs: str = "abc", backend: ScriptedBackend | None = None, **options: Any) -> list[AgentResult]:
    """On a loop of its own, as a program has it: what ends that is seen."""

    async def main() -> list[AgentResult]:
        return list(
            await BatchAgent.run(
                task="{it}", inputs=list(inputs), backend=backend or ScriptedBackend(script), max_retries=0, **options
            )
        )

    try:
        return asyncio.run(main())
    except BaseException as error:  # noqa: BLE001 - this is what is tested
        pytest.fail(f"the run ended with {error!r}")


@odd
@pytest.mark.parametrize("effect", ["read", "write", "stateful"])
@pytest.mark.parametrize("kind", ["async", "sync", "batch"])
def test_a_base_exception_of_a_tool_fails_only_its_call(error: BaseException, effect: Any, kind: str) -> None:
    def fail(who: str) -> str:
        if who == "b":
            raise error
        return f"used by {who}"

    async def use_async(who: str) -> str:
        await asyncio.sleep(0)
        return fail(who)

    def use_sync(who: str) -> str:
        return fail(who)

    async def use_many(whos: list[str]) -> list[Any]:
        return [error if who == "b" else f"used by {who}" for who in whos]

    tool = {
        "async": lambda: Tool.define(name="use", effect=effect)(use_async),
        "sync": lambda: Tool.define(name="use", effect=effect)(use_sync),
        "batch": lambda: Tool.batchable(key_arg="who", name="use", effect=effect)(use_many),
    }[kind]()
    first, failed, last = run(tools=[tool])
    assert (first.text, last.text) == ("used by a", "used by c")
    assert failed.ok
    assert failed.text.startswith(f"{type(error).__name__}: boom")


@odd
@pytest.mark.parametrize("where", ["version", "rate_key", "argument"])
def test_a_base_exception_of_a_tool_policy_function_fails_only_its_call(error: BaseException, where: str) -> None:
    def fail(arguments: Any) -> str:
        if arguments["who"] == "b":
            raise error
        return "key"

    class Who(str):
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            from pydantic_core import core_schema

            return core_schema.no_info_after_validator_function(cls.check, core_schema.str_schema())

        @classmethod
        def check(cls, value: str) -> str:
            fail({"who": value if where == "argument" else ""})
            return value

    async def use(who: Who) -> str:
        return f"used by {who}"

    policy: dict[str, Any] = {"version": {"version": fail}, "rate_key": {"rate_limit": 1e6, "rate_key": fail}}
    tool = Tool.define(effect="read", **policy.get(where, {}))(use)
    results = run(tools=[tool])
    assert [result.ok for result in results] == [True] * 3
    assert (results[0].text, results[2].text) == ("used by a", "used by c")


@odd
def test_a_base_exception_of_an_answer_validator_fails_only_its_agent(error: BaseException) -> None:
    class Person(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def check(cls, name: str) -> str:
            if name == "b":
                raise error
            return name

    backend = ScriptedBackend(lambda request: say(f'{{"name": "{getattr(request.messages[0], "text", "")}"}}'))
    results = run(backend=backend, output_schema=Person)
    assert [result.ok for result in results] == [True, False, True]
    failure = results[1].error
    assert failure is not None
    assert failure.kind is ErrorKind.INVALID_OUTPUT
    assert "boom" in failure.message


@odd
def test_a_base_exception_of_an_event_sink_does_not_stop_the_run(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Sink:
        def emit(self, event: Event) -> None:
            raise error

    with caplog.at_level(logging.WARNING):
        results = run(backend=ScriptedBackend(lambda request: say("yes")), events=Sink())
    assert [result.ok for result in results] == [True] * 3
    assert "gets no more events" in caplog.text


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
def test_a_base_exception_of_on_result_does_not_stop_the_run(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(result: AgentResult) -> None:
        raise error

    with caplog.at_level(logging.ERROR):
        results = run(backend=ScriptedBackend(lambda request: say("yes")), on_result=fail)
    assert [result.ok for result in results] == [True] * 3
    assert "on_result raised" in caplog.text
