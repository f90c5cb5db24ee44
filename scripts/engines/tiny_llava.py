"""tiny_llava.py TEXT_MODEL_FOLDER MODEL_FOLDER: a LLaVA of random weights, 26 MB, with the tokenizer of another model.

Its answers are noise. Its prompts are real: an image of any size becomes 16 tokens, which the server counts.
Runs in vLLM's environment, not in ours.
"""

import json
import shutil
import sys
from pathlib import Path

import torch  # type: ignore[import-not-found, unused-ignore]
from safetensors.torch import save_file  # type: ignore[import-not-found, unused-ignore]
from transformers import (  # type: ignore[import-not-found, unused-ignore]
    AutoTokenizer,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

IMAGE_SIZE, PATCH_SIZE = 56, 14
IMAGE_TOKEN = "<image>"
TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<image>{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make(text_model: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(text_model)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    vision = CLIPVisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        image_size=IMAGE_SIZE, patch_size=PATCH_SIZE, projection_dim=64,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        vision_feature_select_strategy="default", vision_feature_layer=-1, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    # Where vLLM looks for the weights of the vision tower, transformers 5 has one name less.
    old, new = "model.vision_tower.", "model.vision_tower.vision_model."
    names = {name: name if new in name else name.replace(old, new) for name in model.state_dict()}
    weights = {names[name]: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["LlavaForConditionalGeneration"]
    config.save_pretrained(out)
    shutil.copyfile(text_model / "tokenizer.json", out / "tokenizer.json")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    (out / "chat_template.jinja").write_text(TEMPLATE)
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    preprocessor = {
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": IMAGE_SIZE}, "crop_size": size,
        "do_resize": True, "do_center_crop": True, "do_normalize": True, "do_rescale": True, "do_convert_rgb": True,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    }  # fmt: skip
    (out / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    processor = {
        "processor_class": "LlavaProcessor", "patch_size": PATCH_SIZE, "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default", "image_token": IMAGE_TOKEN,
    }  # fmt: skip
    (out / "processor_config.json").write_text(json.dumps(processor))


make(Path(sys.argv[1]), Path(sys.argv[2]))
