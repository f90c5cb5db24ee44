"""What a run reports of tool results that several agents read, through the public API."""

from pathlib import Path
from typing import Any

import pytest

from batch_agent import BatchAgent, Tool
from batch_agent.cli.commands.inspect import inspect
from batch_agent.core.events import Event
from batch_agent.core.run_reports import SharedResults
from batch_agent.observe.live.state import LiveState
from batch_agent.observe.text.prefix import prefix_lines
from batch_agent.observe.text.summary import summary_lines
from batch_agent.testing import ScriptedBackend, call, say

DOCUMENTS = {name: f"About {name}. " + "lorem ipsum dolor " * 300 for name in ("cats", "dogs")}
ROWS = [{"question": f"question {number}"} for number in range(12)]
TASK = "Read about cats and dogs, then answer.\n\n{question}"


@Tool.define(effect="read")
async def read(name: str) -> str:
    """Read a document."""
    return DOCUMENTS.get(name) or f"{name}: {'own words ' * 300}"


def reading(*names: str) -> ScriptedBackend:
    """Agents that read these documents, one per turn; `own` is another one for each agent."""

    def answer(request: Any) -> Any:
        if request.turn >= len(names):
            return say("Both are animals.")
        name = names[request.turn]
        return call("read", name=f"document {request.index}" if name == "own" else name)

    return ScriptedBackend(answer, kv_tokens=1_000_000)


class Sink:
    def __init__(self) -> None:
        self.state = LiveState()

    def emit(self, event: Event) -> None:
        self.state.emit(event)


async def run(backend: ScriptedBackend, **options: Any) -> tuple[SharedResults | None, str]:
    """The report, and the summary of the run."""
    sink = Sink()
    tools = options.pop("tools", [read])
    results = await BatchAgent.run(
        task=TASK, inputs=ROWS, backend=backend, tools=tools, events=sink, progress=False, **options
    )
    assert all(result.ok for result in results)
    summary = "\n".join(summary_lines(sink.state, 1.0))
    shared = results.scheduling.shared_results
    assert results.prefix is not None
    assert results.prefix.shared_results == shared
    assert ("Shared results" in summary) == (shared is not None)
    return shared, summary


async def test_a_run_that_places_nothing_first_is_told_what_that_would_save() -> None:
    shared, summary = await run(reading("cats", "dogs"))
    assert shared is not None
    assert (shared.references, shared.agents, shared.placed, shared.stored_once) == (2, 12, 0, None)
    assert shared.saved_share > 0.6
    line = "2 tool results were read by 12 agents, and computed again for each of them. Placed first, "
    assert f"{line}{shared.saved_share:.0%} fewer prompt tokens are computed" in summary
    assert 'set shared_results="auto".' in summary


async def test_a_run_that_places_results_first_is_told_what_it_saved() -> None:
    shared, summary = await run(reading("cats", "dogs"), shared_results="first")
    assert shared is not None
    assert (shared.references, shared.agents, shared.placed) == (2, 12, 24)
    per_agent = sum(map(len, DOCUMENTS.values())) / 4
    assert 0.8 * 11 * per_agent < shared.saved_tokens < 11 * per_agent
    assert shared.stored_once is not None
    assert 0 < shared.stored_once <= 1.1 * 11 * per_agent
    assert "2 tool results were placed before the own text of 12 agents; about" in summary
    assert "did not have to be computed, and the KV cache held up to" in summary


async def test_the_advice_is_about_what_auto_then_saves() -> None:
    advice, _ = await run(reading("cats", "dogs"))
    done, _ = await run(reading("cats", "dogs"), shared_results="auto")
    assert advice is not None
    assert done is not None
    assert done.saved_share == pytest.approx(advice.saved_share, abs=0.1)


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (("own", "own"), {}),
        (("cats",), {"tools": [Tool.define(effect="stateful")(read.function)]}),
        (("cats",), {"tools": [Tool.define(effect="read", placement="inline")(read.function)]}),
        ((), {}),
    ],
    ids=["each agent its own", "not shared", "inline by choice", "no calls"],
)
async def test_a_run_that_could_gain_nothing_hears_nothing(names: tuple[str, ...], options: dict[str, Any]) -> None:
    shared, _ = await run(reading(*names), **options)
    assert shared is None


async def test_a_run_in_which_nothing_was_worth_placing_says_so() -> None:
    shared, summary = await run(reading("own"), shared_results="auto")
    assert shared == SharedResults(0, 0, 0, 0, 0.0, 0)
    assert "none was placed first, as that would have saved nothing" in summary


async def test_lint_names_tools_whose_results_could_be_placed_first() -> None:
    options: dict[str, Any] = {"task": TASK, "inputs": ROWS, "backend": reading(), "tools": [read]}
    report = await BatchAgent.lint(**options)
    assert report.inline_tools == ("read",)
    assert not report.findings
    assert any("agents share those of read, but they stand behind" in line for line in prefix_lines(report))
    placed = await BatchAgent.lint(**options, shared_results="auto")
    assert placed.inline_tools == ()
    assert not any("Tool results" in line for line in prefix_lines(placed))


@pytest.mark.parametrize("exact", [False, True])
async def test_lint_reports_what_agents_of_an_earlier_run_read(tmp_path: Path, exact: bool) -> None:
    done, _ = await run(reading("cats", "dogs"), checkpoint_dir=tmp_path)
    assert done is not None
    options: dict[str, Any] = {"task": TASK, "inputs": ROWS, "backend": reading(), "tools": [read]}
    report = await BatchAgent.lint(**options, checkpoint_dir=tmp_path, exact=exact)
    assert report.shared_results is not None
    assert (report.shared_results.references, report.shared_results.agents) == (2, 12)
    assert report.shared_results.saved_share == pytest.approx(done.saved_share, abs=0.02)
    assert any("2 tool results were read by 12 agents" in line for line in prefix_lines(report))
    elsewhere = await BatchAgent.lint(**options, checkpoint_dir=tmp_path / "none", exact=exact)
    assert elsewhere.shared_results is None


@pytest.mark.parametrize(
    ("effect", "placement", "expected"),
    [
        ("read", "inline", "fewer prompt tokens are computed (about"),
        ("read", "first", "2 tool results were placed before the own text of 12 agents"),
        ("stateful", "inline", None),
    ],
)
async def test_inspect_reports_what_agents_of_a_checkpoint_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], effect: Any, placement: Any, expected: str | None
) -> None:
    tool = Tool.define(effect=effect)(read.function)
    await BatchAgent.run(
        task=TASK,
        inputs=ROWS,
        backend=reading("cats", "dogs"),
        tools=[tool],
        checkpoint_dir=tmp_path,
        shared_results=placement,
        progress=False,
    )
    inspect(tmp_path)
    shown = capsys.readouterr().out
    assert "12 answered" in shown
    assert expected is None or expected in shown
    assert ("Shared results" in shown) == (expected is not None)
