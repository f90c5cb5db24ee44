"""OpenCode, the coding agent: its npm package, which brings a program for this machine, about 200 MB."""

import os
import shutil
import subprocess
from pathlib import Path

VERSION = "1.18.18"
PROGRAM = Path("node_modules", ".bin", "opencode")


def build(folder: Path) -> None:
    """Install OpenCode into the folder; raises CalledProcessError."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("OpenCode is installed by npm, which is not here. Install Node.js 20 or newer, with npm.")
    quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel", "error"]
    subprocess.run([npm, "install", "--prefix", str(folder), *quiet, f"opencode-ai@{VERSION}"], check=True)
    # It makes folders in its home, whatever it is asked.
    home = {"HOME": str(folder / "home")} | {f"XDG_{name}_HOME": "" for name in ("CACHE", "CONFIG", "DATA", "STATE")}
    subprocess.run([str(folder / PROGRAM), "--version"], check=True, env=os.environ | home)
