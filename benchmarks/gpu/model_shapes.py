"""Models with a real shape and no weights, for `vllm --load-format dummy`."""

import json
import shutil
from pathlib import Path
from typing import Any

# The published dimensions of Qwen2.5, but for the vocabulary, which is the tokenizer's.
_COMMON: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
}
_SHAPES: dict[str, dict[str, Any]] = {
    "7b": {
        "hidden_size": 3_584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    "32b": {
        "hidden_size": 5_120,
        "intermediate_size": 27_648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
    },
}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_VOCABULARY_STEP = 256


def make_model(shape: str, root: Path, tokenizer: Path) -> Path:
    """A folder that vLLM can load, below `root`. Raises FileNotFoundError for a folder without a tokenizer.json."""
    folder = root / f"shape-{shape}"
    folder.mkdir(parents=True, exist_ok=True)
    known = json.loads((tokenizer / "tokenizer.json").read_text())
    ids = [*known["model"]["vocab"].values(), *(token["id"] for token in known.get("added_tokens", ()))]
    for name in _TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder / name)
    rounded = -(-(max(ids) + 1) // _VOCABULARY_STEP) * _VOCABULARY_STEP
    ends = {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": rounded}
    (folder / "config.json").write_text(json.dumps({**_COMMON, **ends, **_SHAPES[shape]}, indent=2))
    return folder
