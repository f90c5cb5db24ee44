"""NVIDIA Dynamo: the real frontend and KV router with mocker workers, in a virtual environment without torch."""

import subprocess
from pathlib import Path

from scripts.engines.environments import make_environment, pip_install
from scripts.engines.layout import RECIPES

VERSION = "1.6.1"
CONSTRAINTS = str(RECIPES / "dynamo-constraints.txt")
# What the frontend and the mocker import. ai-dynamo asks for more (Kubernetes, Redis, a simulator with 1.6 GB of jax
# whose pinned version has no wheel), for parts of it that are not started here.
REQUIREMENTS = ("msgspec", "packaging", "pydantic", "pyyaml", "tokenizers", "uvloop")


def build(folder: Path) -> None:
    """Install Dynamo into the folder; raises CalledProcessError."""
    python = make_environment(folder)
    pip_install(python, "--no-deps", f"ai-dynamo=={VERSION}", f"ai-dynamo-runtime=={VERSION}")
    pip_install(python, "--constraint", CONSTRAINTS, *REQUIREMENTS)
    subprocess.run([str(python), "-c", "import dynamo.frontend.main, dynamo.mocker.main"], check=True)
