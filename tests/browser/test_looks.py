"""Pictures of the page, for people to look at: SCREENSHOTS names the folder they are left in."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser import run_views as models
from tests.browser.tab import Page

from batch_agent.observe.report.html import report_of

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
