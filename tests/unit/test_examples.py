"""Every example runs as its docstring says."""

import subprocess
import sys
from pathlib import Path

from batch_agent.sim import Script, SimConfig, SimServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_sort_notes_answers_for_every_file(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("I love the lamp.")
    with SimServer(SimConfig(zero_latency=True), Script()) as sim:
        words = [sys.executable, str(EXAMPLES / "sort_notes.py"), str(tmp_path), "--backend", sim.url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["0.txt", "1.txt", "2.txt"]
    assert all("sentiment=" in line for line in lines)
