"""LMCache on CPU: the public wheel in a virtual environment on top of vLLM's, whose server loads its connector."""

import subprocess
from pathlib import Path

from scripts.engines.environments import make_environment, pip_install, site_packages
from scripts.engines.layout import RECIPES, VLLM

VERSION = "0.5.6"
CONSTRAINTS = str(RECIPES / "lmcache-constraints.txt")
# What its server and vLLM's connector import that vLLM's environment lacks. LMCache asks for CUDA libraries and for the
# clients of remote stores too, none of which is loaded here.
REQUIREMENTS = ("aiofile", "aiofiles", "nvtx", "opentelemetry-exporter-prometheus", "sortedcontainers")
IMPORTS = "import lmcache.v1.multiprocess.http_server, lmcache.integration.vllm.lmcache_mp_connector"


def build(folder: Path) -> None:
    """Install LMCache into the folder, beside vLLM's environment, which stays as it is; raises CalledProcessError."""
    python = make_environment(folder)
    (site_packages(folder) / "batch_agent.pth").write_text(f"{site_packages(VLLM.folder)}\n")
    pip_install(python, "--no-deps", f"lmcache=={VERSION}")
    pip_install(python, "--constraint", CONSTRAINTS, *REQUIREMENTS)
    subprocess.run([str(python), "-W", "ignore", "-c", IMPORTS], check=True)
