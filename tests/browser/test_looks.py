"""Pictures of the page, for people to look at: SCREENSHOTS names the folder they are left in."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser import run_views as models
from tests.browser.tab import Page

from batch_agent import BatchAgent, Flow
from batch_agent.observe.report.html import report_of
from batch_agent.testing import ScriptedBackend, say

pytestmark = pytest.mark.asyncio(loop_scope="session")

PHONE = {"width": 375, "height": 812, "touch": True}
DARK = {"scheme": "dark"}
LOOKS: dict[str, tuple[Callable[[], models.Model], dict[str, Any]]] = {
    "desktop": (models.plain, {}),
    "desktop-dark": (models.plain, DARK),
    "phone": (models.plain, PHONE),
    "phone-dark": (models.flow, PHONE | DARK),
    "ten-thousand": (lambda: models.plain(10_000, slots=300, turns=6), {}),
    "ten-thousand-dark": (lambda: models.plain(10_000, slots=300, turns=6), DARK),
    "flow": (models.flow, {}),
    "running": (lambda: models.cut(models.plain(), 12), {}),
    "failed": (lambda: models.plain(80, failing=0.4) | {"state": "ended early"}, {}),
}


@pytest.mark.parametrize("look", LOOKS)
async def test_a_report_page_is_rendered_as_a_screenshot(
    page: Page, tmp_path: Path, screenshots: Path, look: str
) -> None:
    make, media = LOOKS[look]
    path = tmp_path / "report.html"
    path.write_bytes(report_of(make()))
    await page.emulate(**media)
    await page.open(path.as_uri())
    shot = await page.screenshot(screenshots / f"{look}.png", whole=True)
    width, height = struct.unpack(">II", shot[16:24])
    assert width == media.get("width", 1280)
    assert height > 2_000  # all parts are there
    assert len(shot) > 50_000  # and not empty


BROKEN = """(() => {
    const broken = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode;
        const host = node.parentElement;
        if (!host.closest("main, #head, #panel, .batch-agent") || host.closest("svg, script, style")) continue;
        for (const { 0: word, index } of node.data.matchAll(/\\S+/g)) {
            const range = document.createRange();
            range.setStart(node, index);
            range.setEnd(node, index + word.length);
            const boxes = [...range.getClientRects()].filter((box) => box.width > 0.5);
            const lines = new Set(boxes.map((box) => Math.round(box.top)));
            if (word.length <= 24 && !/[-\\/]/.test(word) && lines.size > 1) broken.push(word);
        }
    }
    return broken;
})()"""
"""Words that are shown on two lines. Those with a hyphen or a slash may be; so may long ones, such as addresses."""


@pytest.mark.parametrize("width", [320, 390, 1280, 1600])
@pytest.mark.parametrize("look", ["plain", "flow", "running"])
async def test_no_word_of_a_report_is_broken(page: Page, tmp_path: Path, look: str, width: int) -> None:
    models_of: dict[str, Callable[[], models.Model]] = {
        "plain": models.plain,
        "flow": models.flow,
        "running": lambda: models.cut(models.plain(), 12),
    }
    path = tmp_path / "report.html"
    path.write_bytes(report_of(models_of[look]()))
    await page.emulate(width=width)
    await page.open(path.as_uri())
    assert await page.value(BROKEN) == []
    await page.click("#results .agent")
    assert await page.value(BROKEN) == []
    assert await page.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 700, 1280])
async def test_no_word_of_a_table_in_a_notebook_is_broken(page: Page, tmp_path: Path, width: int) -> None:
    review = "An extraordinarily uncomfortable chair, and unbelievably overpriced merchandise besides."
    rows = [{"id": f"order-{number}", "country": "Liechtenstein", "review": review} for number in range(3)]
    script = ScriptedBackend(lambda request: say('{"recommendation": "disappointing", "summary": "Uncomfortable."}'))
    options: dict[str, Any] = {"output_schema": {"type": "object"}, "prices": {"scripted": (1, 1, 1)}}
    results = await BatchAgent.run(task="{review}", inputs=rows, backend=script, **options)
    outcome = await Flow(rows, backend=script, prices=options["prices"]).map("verdict", "{review}").run()
    path = tmp_path / "notebook.html"
    for html in (results._repr_html_(), outcome._repr_html_()):
        path.write_text(f'<!doctype html><meta charset="utf-8"><body style="font: 14px sans-serif">{html}')
        await page.emulate(width=width)
        await page.open(path.as_uri())
        assert "disappointing" in await page.text(".batch-agent table")
        assert await page.value(BROKEN) == []
        assert await page.value("document.documentElement.scrollWidth") <= width
