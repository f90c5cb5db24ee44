"""Ray Serve, which puts HTTP endpoints in front of replicas: the public wheels in a virtual environment."""

import subprocess
from pathlib import Path

from scripts.engines.environments import make_environment, pip_install

VERSION = "2.60.0"


def build(folder: Path) -> None:
    """Install Ray Serve into the folder; raises CalledProcessError."""
    python = make_environment(folder)
    pip_install(python, f"ray[serve]=={VERSION}")
    subprocess.run([str(python), "-c", "import ray.serve"], check=True)
