"""Emulators of object stores: Azurite (Azure, by npm), and one of Google Cloud Storage, with the clients of both."""

import shutil
import subprocess
from pathlib import Path

from scripts.engines.environments import make_environment, pip_install

AZURITE_VERSION = "3.35.0"
AZURITE = Path("node_modules", ".bin", "azurite-blob")
GCS_EMULATOR = Path("bin", "gcp-storage-emulator")
CLIENTS = ("adlfs==2026.8.0", "gcsfs==2026.10.1", "gcp-storage-emulator==2026.7.19", "fsspec==2026.9.0")


def build(folder: Path) -> None:
    """Install both into the folder; raises CalledProcessError."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("Azurite is installed by npm, which is not here. Install Node.js 20 or newer, with npm.")
    pip_install(make_environment(folder), *CLIENTS)
    quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel", "error"]
    subprocess.run([npm, "install", "--prefix", str(folder), *quiet, f"azurite@{AZURITE_VERSION}"], check=True)
    subprocess.run([str(folder / AZURITE), "--version"], check=True, stdout=subprocess.DEVNULL)
