"""Images on a real vLLM, with a model of random weights: the server's count of tokens shows that it read them."""

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow
from tests.support.pictures import pdf, picture, saved

from batch_agent import BatchAgent, Image, SpecError, Tool

IMAGE_TOKENS = 16
TASK = "What is in {photo}?"


def address(url: str, scheme: str) -> str:
    return f"{scheme}://{url.removeprefix('http://')}"


async def counted(url: str, inputs: list[Any], scheme: str = "vllm", **options: Any) -> list[int]:
    """Tokens of the prompts, as the server counts them."""
    chosen = {"task": TASK, "model": "tiny-llava", "max_tokens": 4, "progress": False, **options}
    results = await BatchAgent.run(inputs=inputs, backend=address(url, scheme), **chosen)
    results.raise_for_failures()
    return [result.usage.input for result in results]


@pytest.mark.parametrize("scheme", ["vllm", pytest.param("anthropic", marks=pytest.mark.nightly)])
async def test_the_server_reads_an_image_of_any_form(vision_url: str, tmp_path: Path, scheme: str) -> None:
    path = saved(tmp_path / "a.png", picture(640, 480))
    pages = saved(tmp_path / "a.pdf", pdf("one", "two"))
    inputs = [
        {"photo": ""},
        {"photo": Image(path)},
        {"photo": picture(kind="JPEG")},
        {"photo": Pillow.open(io.BytesIO(picture(kind="WEBP")))},
        {"photo": Image(picture(kind="GIF"))},
        {"photo": Image(path, max_side=100)},
        {"photo": [Image(pages, page=1), Image(pages, page=2)]},
    ]
    without, *with_images = await counted(vision_url, inputs, scheme)
    # The text is two parts around an image, so that the tokenizer has one token more.
    assert [count - without for count in with_images] == [IMAGE_TOKENS + 1] * 5 + [2 * IMAGE_TOKENS + 1]


async def test_equal_images_are_computed_once_and_others_are_not_confused(vision_url: str) -> None:
    task = "Here is how to look at a picture, step by step. " * 12 + "{photo} What is in it?"
    options: dict[str, Any] = {
        "task": task,
        "model": "tiny-llava",
        "max_tokens": 2,
        "progress": False,
        "max_inflight": 1,
    }
    same, other = Image(picture(color=1)), Image(picture(color=2))
    rows = [{"photo": image} for image in (same, same, other)]
    results = await BatchAgent.run(inputs=rows, backend=address(vision_url, "vllm"), reorder=False, **options)
    first, second, third = (result.usage.cached for result in results)
    assert second > first
    assert second >= third > 0


@pytest.mark.nightly
async def test_a_tool_returns_an_image_to_the_model(vision_url: str) -> None:
    @Tool.define(effect="read")
    def draw() -> Image:
        """Draw something."""
        return Image(picture())

    from batch_agent.backends.connect import connect
    from batch_agent.core.messages import Assistant, Prompt, ToolCall, ToolResult, ToolResults, User
    from batch_agent.core.requests import Finished, Request, Sampling
    from batch_agent.media.image_files import identify

    backend = await connect(address(vision_url, "vllm"), "tiny-llava", uses_tools=False, notify=print)
    call = ToolCall("1", "draw", "{}")
    counts = []
    for images in ((), (identify(draw()),)):
        messages = (User("Draw."), Assistant("", (call,)), ToolResults((ToolResult(call, "done", images=images),)))
        async with backend.stream(Request(Prompt(""), messages, "tiny-llava", Sampling(max_tokens=2))) as deltas:
            counts += [delta.usage.input async for delta in deltas if isinstance(delta, Finished)]
    await backend.aclose()
    assert counts[1] - counts[0] > IMAGE_TOKENS


@pytest.mark.parametrize("engine", ["vllm", "dynamo"])
async def test_a_text_model_is_refused_before_an_agent_starts(request: pytest.FixtureRequest, engine: str) -> None:
    url = request.getfixturevalue(f"{engine}_url")
    with pytest.raises(SpecError, match=rf"'smollm2' on {engine} takes none.*it says: "):
        await BatchAgent.run(task=TASK, inputs=[Image(picture())], backend=address(url, engine), progress=False)
