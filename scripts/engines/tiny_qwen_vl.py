"""tiny_qwen_vl.py TEXT_MODEL_FOLDER MODEL_FOLDER: a Qwen2-VL of random weights, 26 MB, with another model's tokenizer.

Its answers are noise. Its prompts are real: each square of 28 pixels of an image becomes a token, between two others.
Runs in vLLM's environment, not in ours.
"""

import json
import sys
from pathlib import Path

import torch  # type: ignore[import-not-found, unused-ignore]
from transformers import (  # type: ignore[import-not-found, unused-ignore]
    AutoTokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

START, END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make(text_model: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(text_model)
    tokenizer.add_special_tokens({"additional_special_tokens": [START, END, IMAGE, VIDEO]})
    start, end, image, video = tokenizer.convert_tokens_to_ids([START, END, IMAGE, VIDEO])
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]},
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "tie_word_embeddings": False,
    }  # fmt: skip
    vision = {
        "depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
        "in_chans": 3,  # the name that SGLang reads
    }  # fmt: skip
    config = Qwen2VLConfig(
        text_config=text, vision_config=vision, image_token_id=image, video_token_id=video,
        vision_start_token_id=start, vision_end_token_id=end, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2VLForConditionalGeneration(config).save_pretrained(out)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    (out / "chat_template.jinja").write_text(TEMPLATE)
    preprocessor = {
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor",
        "min_pixels": 3_136, "max_pixels": 50_176, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    }  # fmt: skip
    (out / "preprocessor_config.json").write_text(json.dumps(preprocessor))


make(Path(sys.argv[1]), Path(sys.argv[2]))
