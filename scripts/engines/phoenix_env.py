"""Arize Phoenix, the trace server: the public wheel in a virtual environment, for the tests of traces."""

import subprocess
from pathlib import Path

from scripts.engines.environments import make_environment, pip_install
from scripts.engines.layout import RECIPES

VERSION = "20.26.1"
CONSTRAINTS = str(RECIPES / "phoenix-constraints.txt")


def build(folder: Path) -> None:
    """Install Phoenix into the folder; raises CalledProcessError."""
    python = make_environment(folder)
    pip_install(python, "--constraint", CONSTRAINTS, f"arize-phoenix=={VERSION}")
    subprocess.run([str(python), "-c", "import phoenix.server.main, phoenix.client"], check=True)
