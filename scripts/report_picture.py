"""Makes docs/images/report.png: `python -m scripts.report_picture`, with a Chromium (scripts/browser/install.sh).

The picture shows the report of a run on the simulated engine: agents with tools and a schema, and a few inputs that are
longer than the context window."""

import asyncio
import base64
import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import BaseModel
from tests.browser.chromium import browser

from batch_agent import BatchAgent, Tool
from batch_agent.observe.report.html import REPORT
from batch_agent.sim import Script, SimConfig, SimServer

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "report.png"
_AGENTS = 600
_WIDTH, _MAX_HEIGHT = 1280, 2250
_THINGS = ("desk lamp", "kettle", "phone", "chair", "backpack", "keyboard", "bicycle light", "blanket")
_OPENINGS = (
    "I bought this {} in spring.",
    "The {} arrived a day late.",
    "My sister gave me the {}.",
    "Third {} in a row.",
)
_VERDICTS = (
    "It works as described and feels solid.",
    "After two weeks it stopped working.",
    "For this price I expected more.",
    "I would buy it again at once.",
    "The manual is missing, the hotline was friendly.",
)


class Review(BaseModel):
    verdict: Literal["good", "mixed", "bad"]
    stars: Literal[1, 2, 3, 4, 5]
    asks_for_refund: bool


@Tool.define(effect="read")
async def find_product(name: str) -> str:
    """Find a product in the catalogue: its number, price and department."""
    await asyncio.sleep(0.4)
    return f"{name}: number 4711, 39.90 EUR, household"


@Tool.define(effect="read")
async def past_reviews(product: str) -> str:
    """Past reviews of a product, the newest first."""
    await asyncio.sleep(0.8)
    return f"Four reviews of {product}, three of them good."


def _reviews() -> Iterator[dict[str, str]]:
    chance = random.Random(7)
    for number in range(_AGENTS):
        opening = chance.choice(_OPENINGS).format(chance.choice(_THINGS))
        sentences = chance.sample(_VERDICTS, chance.randint(1, 3))
        text = " ".join([opening, *sentences] * (900 if number % 97 == 11 else 1))
        yield {"id": f"R-{4000 + number}", "review": text}


async def _run(folder: Path) -> None:
    config = SimConfig(step_base_ms=12, max_model_len=4_096, num_blocks=1_500)
    with SimServer(config, Script(tool_turns=2, keys=40)) as sim:
        await BatchAgent.run(
            task="Read this review and judge it.\n\n{review}",
            inputs=list(_reviews()),
            tools=[find_product, past_reviews],
            output_schema=Review,
            system_prompt="You judge reviews for a shop. Look the product up before you judge.",
            backend=sim.url.replace("http://", "vllm://"),
            prices={"sim": (0.5, 0.05, 1.5)},
            max_turns=6,
            temperature=0.2,
            checkpoint_dir=folder,
            progress=False,
        )


async def _picture(report: Path) -> bytes:
    async with browser() as page:
        await page.emulate(_WIDTH)
        await page.open(report.as_uri())
        whole = await page.value("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": _WIDTH, "height": min(whole, _MAX_HEIGHT), "scale": 1}
        shot = await page.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])


async def _main() -> None:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch, "reviews")
        await _run(folder)
        PICTURE.write_bytes(await _picture(folder / REPORT))


if __name__ == "__main__":
    asyncio.run(_main())
