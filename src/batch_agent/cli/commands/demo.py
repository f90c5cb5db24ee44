"""batch-agent demo: a batch of tool-using agents that read customer notes, by default on the embedded model."""

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
from ...core.results import AgentResult
from ...core.safe_text import safe_text
from ...data.results import Results
from ...observe.live.progress import Progress, progress_for
from ...observe.text.summary import summary_lines
from ...tools import Tool
from ..checkpoint import delete_checkpoint
from ..options.observability import Dashboard
from ..signals import interruptible
from .report import report_lines

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


_COUNT = 24


def notes() -> list[str]:
    """Customer notes about different orders, products and sentiments."""
    written = []
    for number in range(_COUNT):
        template = (_PRAISE if number * 5 % 8 < 4 else _COMPLAINTS)[number % 3]
        product = _PRODUCTS[(number * 7 + number // 4) % 4]
        written.append(f"Order {4100 + 37 * number}: {template.format(product)}")
    return written


TASK = 'Call read_note with path "{path}", then report the order number, the product and the sentiment.'

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
) -> int:
    """Runs 24 agents: each reads a file with a tool and answers with a validated Pydantic object.

    Parameters
    ----------
    out
        Directory for the notes, the results and the report.
    backend
        local:// (embedded), or any other backend of batch-agent run.
    model
        Model name. Not needed if the server has only one model.
    """
    console = Console(stderr=True)
    console.print(
        f"[bold]{len(NOTES)} agents[/bold], each with a tool (read_note) and a Pydantic schema for its answer."
    )
    started = time.monotonic()
    progress, run = progress_for(sys.stderr, dashboard), out / "run"
    delete_checkpoint(run)  # each demo starts from the beginning
    results = interruptible(_run(out, run, backend, model, progress))
    Console().print(_table(results))
    lines = summary_lines(progress.state, time.monotonic() - started)
    for line in [
        *lines,
        f"Results: {out / 'results.jsonl'}",
        *report_lines(run),
        f"To view it in the browser: batch-agent serve {run}",
    ]:
        console.print(safe_text(line), highlight=False, markup=False)
    return 1 if progress.state.failed else 0


async def _run(out: Path, run: Path, backend: str, model: str | None, progress: Progress) -> Results:
    files = {f"{path.parent.name}/{path.name}": path for path in _write_notes(out)}

    @Tool.define
    def read_note(path: str) -> str:
        """Read a customer note."""
        if path not in files:
            raise FileNotFoundError(f"There is no note {path!r}.")
        return files[path].read_text().strip()

    return await BatchAgent.run(
        task=TASK,
        inputs=[{"path": path} for path in files],
        tools=[read_note],
        output_schema=CustomerReport,
        backend=backend,
        model=model,
        max_turns=2,
        temperature=0.0,
        max_tokens=80,
        out=out / "results.jsonl",
        checkpoint_dir=run,
        events=progress,
    )


def _write_notes(out: Path) -> list[Path]:
    paths = [out / "notes" / f"{number:02}.txt" for number in range(len(NOTES))]
    for path, note in zip(paths, NOTES, strict=True):
        with atomic_write(path) as file:
            file.write(f"{note}\n".encode())
    return paths


_COLUMNS = ("note", "order", "product", "sentiment", "tools", "turns", "seconds")


def _cells(result: AgentResult) -> list[str]:
    answer: list[Any] = ["failed", result.error.kind if result.error else "", ""]
    if isinstance(result.output, CustomerReport):
        answer = [result.output.order, result.output.product, result.output.sentiment]
    used = [len(result.tool_calls), result.turns, f"{result.timing.total:.1f}"]
    note = NOTES[result.index].partition(": ")[2]
    return [note, *map(str, answer), *map(str, used)]


def _table(results: list[AgentResult]) -> Table:
    table = Table(title="What the agents found", box=box.SIMPLE, pad_edge=False)
    for name in _COLUMNS:
        is_number = name in ("order", "tools", "turns", "seconds")
        width = 18 if name == "note" else None
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True, max_width=width)
    for result in results:
        table.add_row(*_cells(result))
    return table
