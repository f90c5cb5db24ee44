"""A tiny Qwen2-VL of random weights for SGLang, whose LLaVA does not load with transformers 5. No hub is asked."""

import os
import subprocess
from pathlib import Path

from scripts.engines.layout import MODEL, RECIPES, VISION, VISION_PACKAGES, VLLM


def build(folder: Path) -> None:
    """Write the model into the folder, with vLLM's environment; raises CalledProcessError."""
    environment = os.environ | {"PYTHONPATH": str(VISION.folder / VISION_PACKAGES)}
    script = str(RECIPES / "tiny_qwen_vl.py")
    subprocess.run([str(VLLM.python), script, str(MODEL.folder), str(folder)], check=True, env=environment)
