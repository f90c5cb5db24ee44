"""A tiny LLaVA of random weights, and torchvision, which vLLM needs for models with images; no model hub is asked."""

import subprocess
from pathlib import Path

from scripts.engines.environments import pip_install
from scripts.engines.layout import MODEL, RECIPES, VISION_PACKAGES, VLLM

TORCHVISION = "torchvision==0.28.0"
# The wheel of the public index is built for CUDA, so its operators cannot be loaded beside a torch for CPU. Models use
# its transforms only, but importing it registers these two.
OPERATORS = ("nms", "qnms")


def build(folder: Path) -> None:
    """Write the model into the folder, with vLLM's environment; raises CalledProcessError."""
    packages = folder / VISION_PACKAGES
    pip_install(VLLM.python, "--no-deps", "--target", str(packages), TORCHVISION)
    registrations = packages / "torchvision" / "_meta_registrations.py"
    registrations.write_text(_declared() + registrations.read_text())
    subprocess.run([str(VLLM.python), str(RECIPES / "tiny_llava.py"), str(MODEL.folder), str(folder)], check=True)


def _declared() -> str:
    lines = ["import torch", "", '_absent = torch.library.Library("torchvision", "DEF")']
    arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    return "\n".join([*lines, *(f'_absent.define("{name}{arguments}")' for name in OPERATORS), ""])
