"""Tools that the server of a batch runs for lines that name them."""

from pathlib import Path
from typing import Any

import pytest

from batch_agent.core.errors import SpecError
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.tools import Tool, read_file_tool
from batch_agent.tools.tool_context import ToolContext

from .conftest import chat_line, content_of, read_responses, spec_of
from .test_run_batch import answer


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def scripted(*answers: str) -> str:
    return f"[[sim: [{', '.join(answers)}]]]"


READ = '{"calls": [{"name": "read_file", "arguments": {"path": "note.txt"}}]}'
ASK = '{"calls": [{"name": "ask_user", "arguments": {}}]}'


@pytest.fixture
def read_file(tmp_path: Path) -> Tool:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "note.txt").write_text("the answer is 42")
    return read_file_tool(tmp_path / "docs")


async def test_a_line_that_names_an_allowed_tool_gets_the_final_answer(
    tmp_path: Path, sim: SimServer, read_file: Tool
) -> None:
    line = chat_line("a", scripted(READ, '{"text": "done"}'), tools=[function("read_file")], tool_choice="required")
    await answer(tmp_path, spec_of(sim), line, tools=[read_file])
    response = read_responses(tmp_path / "out.jsonl")["a"]
    assert content_of(response) == "done"
    usage = response["body"]["usage"]
    assert usage["completion_tokens"] > 4, "the usage is that of both turns"
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_a_call_of_a_tool_that_is_not_allowed_is_returned_to_the_client(
    tmp_path: Path, sim: SimServer, read_file: Tool
) -> None:
    both = f"{READ[:-2]}, {ASK[11:]}"
    lines = [
        chat_line("theirs", scripted(ASK), tools=[function("ask_user"), function("read_file")]),
        chat_line("both", scripted(both), tools=[function("ask_user"), function("read_file")]),
        chat_line("no tools", scripted(READ)),
    ]
    await answer(tmp_path, spec_of(sim), *lines, tools=[read_file])
    responses = read_responses(tmp_path / "out.jsonl")
    for name, calls in (("theirs", ["ask_user"]), ("both", ["read_file", "ask_user"]), ("no tools", ["read_file"])):
        message = responses[name]["body"]["choices"][0]["message"]
        assert [call["function"]["name"] for call in message["tool_calls"]] == calls


async def test_the_last_turn_may_not_call_a_tool(tmp_path: Path, read_file: Tool) -> None:
    with SimServer(SimConfig(zero_latency=True), Script(tool_turns=100)) as sim:
        line = chat_line("a", tools=[function("read_file")])
        await answer(tmp_path, spec_of(sim, max_turns=3), line, tools=[read_file])
        assert sim.billed("standard")["requests"] == 3
    choice = read_responses(tmp_path / "out.jsonl")["a"]["body"]["choices"][0]
    assert choice["finish_reason"] == "stop"


async def test_tools_run_on_a_backend_with_another_api(tmp_path: Path, sim: SimServer, read_file: Tool) -> None:
    line = chat_line("a", scripted(READ, '{"text": "done"}'), tools=[function("read_file")], max_tokens=100)
    await answer(tmp_path, spec_of(sim, scheme="anthropic", model="sim"), line, tools=[read_file])
    assert content_of(read_responses(tmp_path / "out.jsonl")["a"]) == "done"


async def test_tools_that_write_or_need_a_run_are_refused(tmp_path: Path, sim: SimServer) -> None:
    @Tool.define(effect="write")
    def send(text: str) -> str:
        """Sends a text."""
        return text

    @Tool.define(effect="read")
    def whose(context: ToolContext) -> str:
        """Says whose call this is."""
        return context.key

    for tool, words in ((send, "'send' writes"), (whose, "'whose' takes a ToolContext")):
        with pytest.raises(SpecError, match=words):
            await answer(tmp_path, spec_of(sim), chat_line("a"), tools=[tool])
