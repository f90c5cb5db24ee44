"""Makes docs/images/demo.svg: `python -m scripts.demo_picture` runs `batch-agent demo` and draws what it prints, with
few lines of its progress and of its table."""

import io
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"
_WIDTH, _ROWS = 88, 8
_COMMAND = [sys.executable, "-m", "batch_agent", "demo", "--no-dashboard"]


def main() -> None:
    with TemporaryDirectory() as folder:
        shown = {**os.environ, "COLUMNS": str(_WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
        done = subprocess.run(
            _COMMAND, cwd=folder, env=shown, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
        )
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ batch-agent demo", style="bold green"))
    for line in picked(done.stdout.splitlines()):
        console.print(Text.from_ansi(line), soft_wrap=True)
    PICTURE.write_text(console.export_svg(title="batch-agent demo"))
    print(PICTURE)


def picked(lines: list[str]) -> list[str]:
    """Of the progress, the last line before the kill and the last one of all; of the table, its first rows."""
    chosen: list[str] = []
    rows = 0
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if _is_progress(line) and _is_progress(following):
            continue
        if rows and line.strip() and not line.strip()[0].isdigit():
            rows += 1
            if rows == _ROWS + 2:
                chosen.append(" ...")
            if rows > _ROWS + 1:
                continue
        elif "─────" in line:
            rows = 1
        else:
            rows = 0
        chosen.append(line)
    return chosen


def _is_progress(line: str) -> bool:
    return " done, " in line and " running" in line


if __name__ == "__main__":
    main()
