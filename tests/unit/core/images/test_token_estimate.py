"""Tokens of images by the published formulas, with the examples of their makers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.core.images import ImageRef
from batch_agent.core.images.token_estimate import estimated_tokens

MODELS = ["gpt-4o", "gpt-4o-mini", "gpt-5-mini", "claude-sonnet-4-5", "claude-opus-4-7", "Qwen2-VL-2B"]


def image(width: int, height: int) -> ImageRef:
    return ImageRef("digest", "image/png", 1, width, height)


@pytest.mark.parametrize(
    ("model", "service", "width", "height", "tokens"),
    [
        ("gpt-4o", "openai", 1024, 1024, 765),
        ("gpt-4o", "openai", 2048, 4096, 1105),
        ("openai/gpt-4o-mini", "openrouter", 1024, 1024, 2_833 + 4 * 5_667),
        ("gpt-4.1-mini", "openai", 1024, 1024, 1_659),
        ("o4-mini", "openai", 32, 32, 2),
        ("gpt-5", "openai", 512, 512, 210),
        ("o3", "openai", 512, 512, 225),
        ("my-deployment", "azure", 1024, 1024, 765),
        ("claude-sonnet-4-5", "anthropic", 1000, 1000, 1_296),
        ("us.anthropic.claude-sonnet-4-5-v1:0", "bedrock", 200, 200, 64),
        ("claude-opus-4-7", "anthropic", 2576, 1449, 4_784),
        ("gemini-2.5-flash", "gemini", 384, 384, 258),
        ("gemini-2.5-flash", "gemini", 960, 540, 6 * 258),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "vllm", 280, 560, 200),
        ("Qwen/Qwen3-VL-8B", "vllm", 320, 320, 100),
        ("llava-hf/llava-1.5-7b-hf", "sglang", 1000, 1000, 576),
        ("unheard-of", "vllm", 750, 100, 100),
    ],
)
def test_the_formula_is_that_of_the_model(model: str, service: str, width: int, height: int, tokens: int) -> None:
    assert estimated_tokens(image(width, height), model, service) == tokens


def test_an_image_of_unknown_size_has_the_tokens_of_a_photo() -> None:
    assert estimated_tokens(ImageRef("digest", url="https://example.com/a.png"), "gpt-4o", "openai") == 1_600


@given(st.sampled_from(MODELS), st.integers(1, 9_000), st.integers(1, 9_000))
def test_no_image_has_more_tokens_than_the_most_of_its_service(model: str, width: int, height: int) -> None:
    most = 48_169 if model.startswith("gpt") else 4_784 if model.startswith("claude") else 16_384
    assert 1 <= estimated_tokens(image(width, height), model, "") <= most
