"""Python programs that tests find by their path."""

import shlex
import sys
from pathlib import Path


def write_python_program(path: Path, code: str) -> None:
    """Makes it executable. The path of the interpreter may have spaces, which a first line with `#!` may not."""
    source = path.with_name(f"{path.name}.py")
    source.write_text(code)
    path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(source)])} "$@"\n')
    path.chmod(0o755)
