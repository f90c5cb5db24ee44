"""smollm2_to_hf.py GGUF_FOLDER MODEL_FOLDER: from GGUF to what vLLM and Dynamo load (270 MB in fp16, about 20 s).

Runs in vLLM's environment, not in ours.
"""

import json
import sys
from pathlib import Path

import torch  # type: ignore[import-not-found, unused-ignore]
from safetensors.torch import save_file  # type: ignore[import-not-found, unused-ignore]
from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found, unused-ignore]

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(source: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    tied = "lm_head.weight"  # the same tensor as the embedding; safetensors refuses to write it twice
    weights = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items() if name != tied}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "float16"}
    config.pop("quantization_config", None)
    (out / "config.json").write_text(json.dumps(config, indent=1, default=str))
    tokenizer.save_pretrained(out)
    model.generation_config.save_pretrained(out)


convert(Path(sys.argv[1]), Path(sys.argv[2]))
