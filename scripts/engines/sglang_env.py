"""SGLang on CPU: the public wheel in a virtual environment on top of vLLM's, which has torch and most of the rest."""

import shutil
import subprocess
from pathlib import Path

from scripts.engines.environments import make_environment, pip_install, site_packages
from scripts.engines.layout import RECIPES, VLLM

VERSION = "0.5.23"
CONSTRAINTS = str(RECIPES / "sglang-constraints.txt")
# What a text server imports that vLLM's environment lacks. SGLang asks for much more: several GB of CUDA libraries, and
# a torch that is newer than vLLM's.
REQUIREMENTS = ("ipython", "orjson", "soundfile", "triton")
STAND_INS = "sglang_stand_ins"


def build(folder: Path) -> None:
    """Install SGLang into the folder, beside vLLM's environment, which stays as it is; raises CalledProcessError."""
    python = make_environment(folder)
    packages = site_packages(folder)
    shutil.copyfile(RECIPES / "sglang_shim" / f"{STAND_INS}.py", packages / f"{STAND_INS}.py")
    # Each line is a further folder to import from, after this environment's own, or code that every start runs.
    (packages / "batch_agent.pth").write_text(f"{site_packages(VLLM.folder)}\nimport {STAND_INS}\n")
    pip_install(python, "--no-deps", f"sglang=={VERSION}")
    pip_install(python, "--constraint", CONSTRAINTS, *REQUIREMENTS)
    subprocess.run([str(python), "-W", "ignore", "-c", "import sglang.srt.entrypoints.http_server"], check=True)
