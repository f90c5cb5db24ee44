"""Images on a real SGLang, with a model of random weights: the server's count of tokens shows that it read them."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow
from tests.live.engines import sglang_vision_server
from tests.support.pictures import pdf, picture, saved

from batch_agent import BatchAgent, Image, SpecError

TASK = "What is in {photo}?"
MARKS = 2
"""Tokens around an image."""


@pytest.fixture(scope="module")
def vision_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with sglang_vision_server(tmp_path_factory.mktemp("sglang-vision")) as url:
        yield url


def address(url: str) -> str:
    return f"sglang://{url.removeprefix('http://')}"


async def test_the_server_reads_an_image_of_any_form(vision_url: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", picture(56, 56))
    pages = saved(tmp_path / "a.pdf", pdf("one", "two"))
    inputs: list[Any] = [
        {"photo": ""},
        {"photo": Image(path)},
        {"photo": picture(56, 112, kind="JPEG")},
        {"photo": Pillow.open(io.BytesIO(picture(112, 112, kind="WEBP")))},
        {"photo": Image(picture(560, 560), max_side=56)},
        {"photo": [Image(path), Image(picture(56, 56, color=7))]},
        {"photo": Image(pages, page=1, max_side=56)},
    ]
    results = await BatchAgent.run(
        task=TASK, inputs=inputs, backend=address(vision_url), max_tokens=4, progress=False, timeout_per_turn=200
    )
    results.raise_for_failures()
    without, *with_images = [result.usage.input for result in results]
    added = [count - without - 1 for count in with_images]  # the text is two parts around an image
    assert added[:5] == [4 + MARKS, 8 + MARKS, 16 + MARKS, 4 + MARKS, 2 * (4 + MARKS)]
    assert added[5] >= 4 + MARKS


async def test_a_forecast_with_a_canary_counts_as_the_server_does(vision_url: str) -> None:
    inputs = [{"photo": picture(112, 112, color=color)} for color in range(4)]
    options: dict[str, Any] = {"task": TASK, "backend": address(vision_url), "max_tokens": 4}
    planned = await BatchAgent.plan(inputs=inputs, canary=2, **options)
    results = await BatchAgent.run(inputs=inputs, progress=False, timeout_per_turn=200, **options)
    assert planned.usage.input == pytest.approx(results.usage.input, rel=0.1)


async def test_a_text_model_is_refused_before_anything_is_sent(sglang_url: str) -> None:
    with pytest.raises(SpecError, match=r"'smollm2' on sglang takes none"):
        await BatchAgent.run(task=TASK, inputs=[Image(picture())], backend=address(sglang_url), progress=False)
