"""Runs in a notebook: a real Jupyter kernel, and what it sends to the page."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from batch_agent.core.errors import ErrorKind
from batch_agent.core.events import (
    AgentFinished,
    AgentStarted,
    FlowStarted,
    LoadSampled,
    Notice,
    RunStarted,
    StageEvent,
)
from batch_agent.core.results import AgentError, AgentResult
from batch_agent.observe.live.notebook import is_notebook, state_html
from batch_agent.observe.live.state import LiveState
from batch_agent.sim import Script, SimConfig, SimServer

HOSTILE = '<img src=x onerror="alert(1)">\x1b[2J'


@dataclass
class Cell:
    """What one cell came to."""

    shown: list[dict[str, Any]] = field(default_factory=list)
    """The contents of displays, and of their updates."""
    updates: list[dict[str, Any]] = field(default_factory=list)
    printed: str = ""

    def hear(self, message: dict[str, Any]) -> None:
        content = message["content"]
        match message["msg_type"]:
            case "display_data":
                self.shown.append(content)
            case "update_display_data":
                self.updates.append(content)
            case "stream":
                self.printed += content["text"]


Run = Callable[[str], Cell]


@pytest.fixture(scope="module")
def run_cell() -> Iterator[Run]:
    manager, client = start_new_kernel(kernel_name="python3")

    def run(code: str) -> Cell:
        cell = Cell()
        reply = client.execute_interactive(code, output_hook=cell.hear, timeout=60)
        assert reply["content"]["status"] == "ok", "\n".join(reply["content"].get("traceback", ()))
        return cell

    try:
        with SimServer(SimConfig(step_base_ms=10), Script(answer_tokens=50)) as sim:
            run(
                "from batch_agent import BatchAgent, Flow\n"
                f"asked = dict(task='Review {{it}}.', backend={sim.url!r}, inputs=[dict(it=n) for n in range(6)])"
            )
            yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def check_is_one_block_that_ends_with(cell: Cell, *lines: str) -> None:
    [first] = cell.shown
    ids = {content["transient"]["display_id"] for content in [first, *cell.updates]}
    assert len(ids) == 1
    pages = [content["data"]["text/html"] for content in cell.updates]
    assert "0 of 6" in "".join(pages[:-1])
    for line in lines:
        assert re.search(line, pages[-1]), pages[-1]
        assert re.search(line, cell.updates[-1]["data"]["text/plain"])
    assert cell.printed == ""


def test_a_run_in_the_notebooks_own_loop_is_shown_in_its_cell(run_cell: Run) -> None:
    cell = run_cell("results = await BatchAgent.run(**asked)")
    check_is_one_block_that_ends_with(cell, r"6 of 6 agents answered in \d+ s \(sim on sim\)\.")


def test_a_run_that_blocks_the_notebook_loop_is_shown(run_cell: Run) -> None:
    cell = run_cell("results = BatchAgent.run_sync(**asked)")
    check_is_one_block_that_ends_with(cell, "6 of 6 agents answered")


def test_a_flow_has_a_bar_and_a_line_for_each_stage(run_cell: Run) -> None:
    cell = run_cell(
        "flow = Flow(asked['inputs'], backend=asked['backend']).map('review', asked['task'])\n"
        "outcome = await flow.reduce('report', 'Sum up {n}.').run()"
    )
    check_is_one_block_that_ends_with(cell, r"review: 6 of 6 agents answered", r"report: 1 of 1 agent answered")


def test_without_progress_nothing_is_shown_in_a_notebook(run_cell: Run) -> None:
    cell = run_cell("results = await BatchAgent.run(**asked, progress=False)")
    assert (cell.shown, cell.updates, cell.printed) == ([], [], "")


def test_a_run_that_cannot_start_leaves_no_empty_frame(run_cell: Run) -> None:
    cell = run_cell(
        "try:\n    await BatchAgent.run(**{**asked, 'backend': 'http://127.0.0.1:9/v1'})\n"
        "except Exception as error:\n    print(type(error).__name__)"
    )
    assert cell.printed == "BackendError\n"
    assert cell.updates[-1]["data"]["text/html"] == ""


def test_this_process_is_no_notebook() -> None:
    assert not is_notebook()


def test_model_output_is_escaped_in_a_notebook() -> None:
    state = LiveState()
    assert "Connecting ..." in state_html(state, 0.0)
    state.emit(Notice(HOSTILE))
    pages = [state_html(state, 0.0)]
    failed = AgentResult(1, "b", error=AgentError(ErrorKind.SERVER, HOSTILE))
    state.emit(FlowStarted((HOSTILE,)))
    for event in (
        RunStarted(HOSTILE, HOSTILE, 8, 10),
        AgentStarted("a", 0),
        AgentFinished(AgentResult(0, "a", output=HOSTILE), False),
        AgentFinished(failed, False),
    ):
        state.emit(StageEvent(HOSTILE, event))
    state.emit(LoadSampled(HOSTILE, 1, 8, 0, 3, 10, 20))
    state.emit(LoadSampled("other", 1, 8))
    pages += [state_html(state, 5.0), state_html(state, 5.0, [HOSTILE])]
    for page in pages:
        assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;" in page
        assert "<img" not in page
        assert "\x1b" not in page
        assert not re.search(r"https?://|<script|<link|url\(", page)
