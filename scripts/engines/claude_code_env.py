"""Claude Code, the coding agent: its npm package, which brings a program for this machine, about 240 MB."""

import os
import shutil
import subprocess
from pathlib import Path

VERSION = "2.1.197"
PROGRAM = Path("node_modules", ".bin", "claude")
_WRAPPER = Path("node_modules", "@anthropic-ai", "claude-code")


def build(folder: Path) -> None:
    """Install Claude Code into the folder; raises CalledProcessError."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise SystemExit("Claude Code is installed by npm, which is not here. Install Node.js 20 or newer, with npm.")
    quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel", "error"]
    package = f"@anthropic-ai/claude-code@{VERSION}"
    subprocess.run([npm, "install", "--ignore-scripts", "--prefix", str(folder), *quiet, package], check=True)
    # What npm would run: it puts the program of this machine in the place of a stub. Some settings of npm forbid it.
    subprocess.run([node, "install.cjs"], check=True, cwd=folder / _WRAPPER)
    home = folder / "home"
    home.mkdir()
    quiet_program = {"CLAUDE_CONFIG_DIR": str(home), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    subprocess.run([str(folder / PROGRAM), "--version"], check=True, env=os.environ | quiet_program)
