"""vLLM Router, in front of several engines: the public wheel in a virtual environment."""

import subprocess
from pathlib import Path

from scripts.engines.environments import make_environment, pip_install

VERSION = "0.1.16"


def build(folder: Path) -> None:
    """Install vLLM Router into the folder; raises CalledProcessError."""
    python = make_environment(folder)
    pip_install(python, f"vllm-router=={VERSION}")
    subprocess.run([str(folder / "bin" / "vllm-router"), "--help"], check=True, stdout=subprocess.DEVNULL)
