"""Codex CLI, the coding agent: its npm package, which brings a program for this machine, about 400 MB."""

import os
import shutil
import subprocess
from pathlib import Path

VERSION = "0.169.0"
PROGRAM = Path("node_modules", ".bin", "codex")


def build(folder: Path) -> None:
    """Install Codex into the folder; raises CalledProcessError."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("Codex is installed by npm, which is not here. Install Node.js 20 or newer, with npm.")
    quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel", "error"]
    subprocess.run([npm, "install", "--prefix", str(folder), *quiet, f"@openai/codex@{VERSION}"], check=True)
    home = folder / "home"
    home.mkdir()
    subprocess.run([str(folder / PROGRAM), "--version"], check=True, env=os.environ | {"CODEX_HOME": str(home)})
