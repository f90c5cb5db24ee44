"""Virtual environments for the engines: each has its own, since their pins contradict one another and ours."""

import subprocess
import sys
import sysconfig
from pathlib import Path


def make_environment(folder: Path) -> Path:
    """Make a virtual environment with this interpreter and return its python; raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip_install(python, "--upgrade", "pip")
    return python


def site_packages(folder: Path) -> Path:
    """Where the virtual environment in that folder keeps its packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))


def pip_install(python: Path, *arguments: str) -> None:
    """Run pip in that environment, from the indexes and wheel folders that pip is configured for.

    Errors are shown; conflicts are not, since each recipe leaves out requirements that have no build or no use here.
    """
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-warn-conflicts"]
    subprocess.run([*pip, *arguments], check=True)
