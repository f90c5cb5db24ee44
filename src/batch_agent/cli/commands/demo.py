"""batch-agent demo: a tour in one run, by default on the embedded model. Agents with a tool and a schema read customer
notes, two agents per note, and share the tool's results. The process is killed halfway, and the run is resumed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field
from rich import box
from rich.console import Console
from rich.table import Table

from ...api import BatchAgent
from ...atomic_file import atomic_write
from ...core.events import AgentFinished, Event
from ...core.protocols.event_sink import EventSinks
from ...core.results import AgentResult
from ...core.safe_text import safe_text
from ...data.results import Results
from ...observe.live.progress import progress_for
from ...observe.text.summary import summary_lines
from ...tools import Tool
from ..checkpoint import delete_checkpoint, report_lines
from ..options.observability import Dashboard
from ..signals import interruptible

_PRODUCTS = ("blender", "lamp", "phone", "desk")
_PRAISE = (
    "I love the {}, it works perfectly.",
    "The {} arrived early and looks fantastic.",
    "Best {} I ever bought, thank you!",
)
_COMPLAINTS = (
    "The {} arrived broken and I want a refund.",
    "I hate this {}, it stopped working after two days.",
    "The {} is ten days late and no one answers.",
)


_COUNT = 12
_READERS = ("A", "B")
_KILLED_AFTER = 8
"""Number of results before the process is killed."""


def notes() -> list[str]:
    """Customer notes about different orders, products and sentiments."""
    written = []
    for number in range(_COUNT):
        template = (_PRAISE if number * 5 % 8 < 4 else _COMPLAINTS)[number % 3]
        product = _PRODUCTS[(number * 7 + number // 4) % 4]
        written.append(f"Order {4100 + 37 * number}: {template.format(product)}")
    return written


TASK = (
    'Call read_note with path "{path}", then report the order number, the product and the sentiment. '
    "You are reader {reader}."
)

NOTES = notes()


class CustomerReport(BaseModel):
    """Answer of an agent about its note."""

    order: int = Field(ge=1000, le=9999)
    product: Literal["blender", "lamp", "phone", "desk"]
    sentiment: Literal["positive", "negative"]


def demo(
    *,
    out: Path = Path("runs/demo"),
    backend: str = "local://",
    model: str | None = None,
    dashboard: Dashboard = None,
    kill_after: int | None = None,
) -> int:
    """Runs 24 agents: each reads a file with a tool and answers with a validated Pydantic object. The process is killed
    after a third of the results, and the run resumed from its checkpoint.

    Parameters
    ----------
    out
        Directory for the notes, the results and the report.
    backend
        local:// (embedded), or any other backend of batch-agent run.
    model
        Model name. Not needed if the server has only one model.
    kill_after
        Only runs the agents, and kills this process (kill -9) after so many results. The demo starts itself with this
        option.
    """
    if kill_after is not None:
        progress = progress_for(sys.stderr, dashboard)
        interruptible(_run(out, backend, model, [progress, _Kill(kill_after)]))
        return 1 if progress.state.failed else 0
    console = Console(stderr=True)
    console.print(
        f"[bold]{len(_READERS) * _COUNT} agents[/bold], each with a tool (read_note) and a Pydantic schema for its "
        f"answer. {_COUNT} notes, each read by two agents, which share one call of the tool."
    )
    run = out / "run"
    _write_notes(out)
    delete_checkpoint(run)  # each demo starts from scratch
    status = _run_until_killed(out, backend, model, dashboard)
    if status != -signal.SIGKILL:
        return status
    console.show_cursor()  # the dashboard has hidden it
    console.print(
        f"[bold]Killed[/bold] (kill -9) after {_KILLED_AFTER} results. The same call resumes the run from its "
        "checkpoint: answers that arrived are not asked for again."
    )
    started, progress = time.monotonic(), progress_for(sys.stderr, dashboard)
    results = interruptible(_run(out, backend, model, progress))
    Console().print(_table(results))
    lines = summary_lines(progress.state, time.monotonic() - started)
    for line in [
        *lines,
        f"Results: {out / 'results.jsonl'}",
        *report_lines(run, str(run)),
        f"To view it in the browser: batch-agent serve {run}",
    ]:
        console.print(safe_text(line), highlight=False, markup=False)
    return 1 if progress.state.failed else 0


def _run_until_killed(out: Path, backend: str, model: str | None, dashboard: bool | None) -> int:
    """Runs the first part in a process of its own. Returns the exit status, which is that of SIGKILL unless the run
    failed."""
    options = ["--out", str(out), "--backend", backend, "--kill-after", str(_KILLED_AFTER)]
    if model is not None:
        options += ["--model", model]
    if dashboard is not None:
        options.append("--dashboard" if dashboard else "--no-dashboard")
    command = [sys.executable, "-m", "batch_agent", "demo", *options]
    with subprocess.Popen(command) as process:  # noqa: S603 - this program
        return process.wait()  # Ctrl-C reaches both processes


class _Kill:
    """Event sink that kills this process after a number of results."""

    def __init__(self, after: int) -> None:
        self._left = after

    def emit(self, event: Event) -> None:
        if isinstance(event, AgentFinished):
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


async def _run(out: Path, backend: str, model: str | None, events: EventSinks) -> Results:
    files = {f"{path.parent.name}/{path.name}": path for path in _paths(out)}

    @Tool.define(effect="read", ttl=3600)  # notes do not change
    def read_note(path: str) -> str:
        """Read a customer note."""
        if path not in files:
            raise FileNotFoundError(f"There is no note {path!r}.")
        return files[path].read_text().strip()

    return await BatchAgent.run(
        task=TASK,
        inputs=[{"path": path, "reader": reader} for path in files for reader in _READERS],
        tools=[read_note],
        output_schema=CustomerReport,
        backend=backend,
        model=model,
        max_turns=2,
        temperature=0.0,
        max_tokens=80,
        out=out / "results.jsonl",
        checkpoint_dir=out / "run",
        events=events,
    )


def _paths(out: Path) -> list[Path]:
    return [out / "notes" / f"{number:02}.txt" for number in range(_COUNT)]


def _write_notes(out: Path) -> None:
    for path, note in zip(_paths(out), NOTES, strict=True):
        with atomic_write(path) as file:
            file.write(f"{note}\n".encode())


_COLUMNS = ("note", "reader", "order", "product", "sentiment", "turns", "seconds")


def _cells(result: AgentResult) -> list[str]:
    answer: list[Any] = ["failed", result.error.kind if result.error else "", ""]
    if isinstance(result.output, CustomerReport):
        answer = [result.output.order, result.output.product, result.output.sentiment]
    used = [result.turns, f"{result.timing.total:.1f}"]
    number, reader = divmod(result.index, len(_READERS))
    return [NOTES[number].partition(": ")[2], _READERS[reader], *map(str, answer), *map(str, used)]


def _table(results: list[AgentResult]) -> Table:
    table = Table(title="What the agents found", box=box.SIMPLE, pad_edge=False)
    for name in _COLUMNS:
        is_number = name in ("order", "turns", "seconds")
        width = 18 if name == "note" else None
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True, max_width=width)
    for result in results:
        table.add_row(*_cells(result))
    return table
