"""batch-agent demo: a real batch of tool-using agents, by default on the embedded model."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from ..api import BatchAgent
from ..core.results import AgentResult
from ..observe.progress import Progress, progress_for
from ..observe.summary import summary_lines
from ..tools import read_file_tool
from .data import ResultFile
from .demo_notes import NOTES

SYSTEM_PROMPT = "You sort messages to a shop. Read the file first, then answer."
TASK = "Read the file {path} and say what its message is about."


class Ticket(BaseModel):
    """What the demo wants to know of each message."""

    topic: Literal["payment", "delivery", "product", "account"]
    mood: Literal["happy", "neutral", "angry"]
    urgent: bool


def demo(*, out: Path = Path("runs/demo"), backend: str = "local://", model: str | None = None) -> int:
    """Run 24 agents: each reads a file with a tool and answers with a checked Pydantic object.

    Parameters
    ----------
    out
        Where the messages, the results and the report are put.
    backend
        local:// (embedded), or any other that `batch-agent run` takes.
    model
        The model's name; not needed where a server has only one.
    """
    console = Console(stderr=True)
    console.print(f"[bold]{len(NOTES)} agents[/bold], one tool (read_file), one answer each as a Pydantic object.")
    started = time.monotonic()
    with ResultFile(out / "results.jsonl") as file, progress_for(sys.stderr) as progress:
        try:
            results = asyncio.run(_run(_write_notes(out / "messages"), backend, model, file, progress))
        except KeyboardInterrupt:
            return 130
    Console().print(_table(results))
    lines = summary_lines(progress.tally, time.monotonic() - started)
    _write_report(out / "report.md", results, lines)
    for line in [*lines, f"Results: {out / 'results.jsonl'}", f"Report: {out / 'report.md'}"]:
        console.print(line, highlight=False)
    return 1 if progress.tally.failed else 0


async def _run(
    folder: Path, backend: str, model: str | None, file: ResultFile, progress: Progress
) -> list[AgentResult]:
    results = []
    async with BatchAgent.stream(
        task=TASK,
        inputs=[{"path": path.name} for path in sorted(folder.iterdir())],
        system_prompt=SYSTEM_PROMPT,
        tools=[read_file_tool(folder)],
        output_schema=Ticket,
        backend=backend,
        model=model,
        max_turns=2,
        temperature=0.0,
        max_tokens=120,
        events=progress,
    ) as stream:
        async for result in stream:
            file.write(result)
            results.append(result)
    return sorted(results, key=lambda result: result.index)


def _write_notes(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, note in enumerate(NOTES, 1):
        (folder / f"message-{number:02}.txt").write_text(note + "\n")
    return folder


_COLUMNS = ("message", "topic", "mood", "urgent", "tools", "turns", "seconds")


def _cells(result: AgentResult) -> list[str]:
    note = NOTES[result.index]
    shown = note if len(note) <= 44 else note[:43] + "…"
    answer: list[Any] = ["failed", result.error.kind if result.error else "", ""]
    if isinstance(result.output, Ticket):
        answer = [result.output.topic, result.output.mood, "yes" if result.output.urgent else "no"]
    used = [len(result.tool_calls), result.turns, f"{result.timing.total:.1f}"]
    return [shown, *map(str, answer), *map(str, used)]


def _table(results: list[AgentResult]) -> Table:
    table = Table(title="What the agents found")
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in ("tools", "turns", "seconds") else "left")
    for result in results:
        table.add_row(*_cells(result))
    return table


def _write_report(path: Path, results: list[AgentResult], lines: list[str]) -> None:
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *map(_cells, results)]
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    path.write_text("\n".join(["# Demo run", "", *(f"- {line}" for line in lines), "", *table, ""]))
