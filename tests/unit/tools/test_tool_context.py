"""Tools that know their agent: a parameter annotated as a ToolContext."""

import asyncio
import functools
from pathlib import Path
from typing import Any

import pytest

from batch_agent import BatchAgent, Flow, SpecError, Tool, ToolContext
from batch_agent.core.messages import ToolResults
from batch_agent.core.requests import Request
from batch_agent.data import as_row
from batch_agent.testing import Answer, ScriptedBackend, call, say


def note(text: str, context: ToolContext) -> str:
    """Note something.

    Args:
        text: What to note.
        context: The agent.
    """
    (context.artifacts / "note.txt").write_text(f"{context.input}: {text}")
    return f"{context.input} {context.index} {context.turn}"


@Tool.define(effect="read")
async def look(context: ToolContext, text: str = "x") -> str:
    """Look."""
    await asyncio.sleep(0)
    return f"{context.input} {context.index} {context.turn}"


class Desk:
    def __init__(self) -> None:
        self.seen: list[ToolContext] = []

    def note(self, text: str, context: ToolContext | None = None) -> str:
        """Note."""
        assert context is not None
        self.seen.append(context)
        return f"{context.input} {context.index} {context.turn}"

    def __call__(self, text: str, *, context: "ToolContext") -> str:
        """Note."""
        return self.note(text, context)


def caller(name: str) -> ScriptedBackend:
    """Every agent calls the tool with the same arguments, and answers with its result."""

    def script(request: Request) -> Answer:
        last = request.messages[-1]
        return say(last.results[0].content) if isinstance(last, ToolResults) else call(name, text="same")

    return ScriptedBackend(script)


async def run(tool: Any, name: str, **options: Any) -> Any:
    given: dict[str, Any] = {"task": "Do {it}", "inputs": ["a", "b"], "progress": False, "backend": caller(name)}
    return await BatchAgent.run(**{**given, "tools": [tool], **options})


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (note, "note"),
        (Tool.define(note), "note"),
        (look, "look"),
        (Desk().note, "note"),
        (Desk(), "Desk"),
        (functools.partial(note), "note"),
        (Tool.define(effect="pure")(note), "note"),
        (Tool.define(effect="stateful")(note), "note"),
        (Tool.define(effect="write", idempotent=True)(note), "note"),
    ],
)
async def test_every_kind_of_tool_gets_the_agent_that_calls_it(tool: Any, name: str) -> None:
    results = await run(tool, name)
    assert results.outputs == ["a 0 1", "b 1 1"]
    assert [each.source for result in results for each in result.tool_calls] == ["executed", "executed"]


def test_the_model_does_not_see_it() -> None:
    for tool in (look, Tool.define(note), Tool.define(Desk().note)):
        assert list(tool.spec.parameters["properties"]) == ["text"]
        assert "context" not in str(tool.spec)
    assert Tool.define(note).arguments.read('{"text": "x"}') == {"text": "x"}


async def test_the_key_the_run_and_the_turn_are_those_of_the_result(tmp_path: Path) -> None:
    desk = Desk()

    def twice(request: Request) -> Answer:
        return say("done") if len(request.messages) > 4 else call("note", text="x")

    results = await run(
        desk.note, "note", inputs=[{"it": "a", "id": "x/1.2"}], key="id", backend=ScriptedBackend(twice),
        checkpoint_dir=tmp_path / "c",
    )  # fmt: skip
    assert [each.turn for each in desk.seen] == [1, 2]
    assert {each.key for each in desk.seen} == {results[0].key} == {"x/1.2"}
    assert len({each.run_id for each in desk.seen}) == 1
    folder = desk.seen[0].artifacts
    assert folder.parent == tmp_path / "c" / "artifacts"
    await run(desk.note, "note", inputs=["other"], checkpoint_dir=tmp_path / "d")
    assert desk.seen[-1].run_id != desk.seen[0].run_id


async def test_artifacts_are_listed_in_the_result_and_again_when_it_is_restored(tmp_path: Path) -> None:
    first = await run(note, "note", checkpoint_dir=tmp_path / "c", out=tmp_path / "out.jsonl")
    assert [[path.read_text() for path in result.artifacts] for result in first] == [["a: same"], ["b: same"]]
    assert all(path.is_relative_to(tmp_path / "c" / "artifacts") for result in first for path in result.artifacts)
    assert as_row(first[0])["artifacts"] == [str(first[0].artifacts[0])]
    assert "note.txt" in (tmp_path / "out.jsonl").read_text()
    again = await run(note, "note", checkpoint_dir=tmp_path / "c")
    assert [result.artifacts for result in again] == [result.artifacts for result in first]


async def test_without_a_checkpoint_artifacts_are_in_a_temporary_folder_that_stays() -> None:
    results = await run(note, "note")
    assert [path.name for result in results for path in result.artifacts] == ["note.txt", "note.txt"]
    assert len({path.parent for result in results for path in result.artifacts}) == 2
    quiet = await run(look, "look")
    assert [result.artifacts for result in quiet] == [(), ()]


async def test_the_stages_of_a_flow_have_folders_of_their_own(tmp_path: Path) -> None:
    flow = (
        Flow(["a"], backend=caller("note"), tools=[note], checkpoint_dir=tmp_path)
        .map("first", "Do {it}")
        .map("second", "Do {it}")
    )
    outcome = await flow.run()
    for name in ("first", "second"):
        [path] = outcome.stages[name].results[0].artifacts
        assert path.is_relative_to(tmp_path / name / "artifacts")


def test_a_tool_can_be_called_in_a_test_with_a_context_of_its_own() -> None:
    context = ToolContext(input="a", index=3)
    assert Tool.define(note)("x", context) == "a 3 1"
    assert (context.artifacts / "note.txt").read_text() == "a: x"


@pytest.mark.parametrize("options", [{"ttl": 5}, {"keeps_errors": True}, {"version": lambda arguments: 1}])
def test_options_of_shared_results_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"Tool 'note' takes a ToolContext, so its results are of one agent"):
        Tool.define(effect="read", **options)(note)


def test_a_batch_function_and_two_contexts_are_refused() -> None:
    def many(ids: list[str], context: ToolContext) -> list[str]:
        """Look up."""
        return ids

    def two(one: ToolContext, other: ToolContext) -> str:
        """Look."""
        return ""

    with pytest.raises(SpecError, match=r"Tool 'many': a batch function has the calls of several agents"):
        Tool.batchable(key_arg="id")(many)
    with pytest.raises(SpecError, match=r"Tool 'two': 'one' and 'other' are both a ToolContext"):
        Tool.define(two)


async def test_a_history_and_a_context_go_together() -> None:
    @Tool.define(effect="stateful", history_arg="past")
    async def page(text: str, past: tuple[str, ...], context: ToolContext) -> str:
        """Page."""
        await asyncio.sleep(0)
        return f"{context.input} {len(past)}"

    results = await run(page, "page")
    assert results.outputs == ["a 0", "b 0"]


async def test_a_replay_does_not_call_the_tool(tmp_path: Path) -> None:
    desk = Desk()
    results = await run(desk.note, "note", checkpoint_dir=tmp_path / "c")
    replayed = await BatchAgent.replay(tmp_path / "c")
    assert [result.output for result in replayed] == results.outputs
    assert len(desk.seen) == 2
