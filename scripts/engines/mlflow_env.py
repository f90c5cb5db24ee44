"""MLflow, the tracking server: the public wheel in a virtual environment, for the tests of traces."""

import subprocess
from pathlib import Path

from scripts.engines.environments import make_environment, pip_install
from scripts.engines.layout import RECIPES

VERSION = "3.17.2"
CONSTRAINTS = str(RECIPES / "mlflow-constraints.txt")


def build(folder: Path) -> None:
    """Install MLflow into the folder; raises CalledProcessError."""
    python = make_environment(folder)
    pip_install(python, "--constraint", CONSTRAINTS, f"mlflow=={VERSION}")
    subprocess.run([str(python), "-c", "import mlflow.server.fastapi_app"], check=True)
