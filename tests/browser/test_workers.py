"""The workers of a run that several share, on its page."""

from pathlib import Path

import pytest
from tests.browser import run_views as models
from tests.browser.tab import Page

from batch_agent.observe.report.html import report_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROWS = "[...document.querySelectorAll('#workers tbody tr')].map(e => [...e.cells].map(cell => cell.innerText))"


def _worker(name: str, turns: int) -> models.Model:
    return {"name": name, "agents": 12, "turns": turns, "usage": {"input": 2_000, "cached": 500, "output": 70}}


async def _show(page: Page, folder: Path, *workers: models.Model) -> None:
    path = folder / "report.html"
    path.write_bytes(report_of({**models.plain(30), "workers": list(workers)}))
    await page.open(path.as_uri())
    assert page.errors == []


async def test_each_worker_has_a_row_and_the_submitting_process_is_one_of_them(page: Page, tmp_path: Path) -> None:
    await _show(page, tmp_path, _worker("", 1_200), _worker(models.HOSTILE, 3))
    first, second = await page.value(ROWS)
    assert first == ["submitting process", "", "12", "1,200", "2,000", "25 %", "70"]
    assert second[0] == models.HOSTILE
    assert "Workers" in await page.text("#contents")


async def test_a_long_list_of_workers_fits_a_phone(page: Page, tmp_path: Path) -> None:
    await page.emulate(375, 812, touch=True)
    await _show(page, tmp_path, *(_worker(f"a-machine-with-a-long-name.example.org-{n}-0a1b2c", n) for n in range(40)))
    assert len(await page.value(ROWS)) == 40
    assert await page.value("document.documentElement.scrollWidth") <= 375


async def test_the_report_of_a_single_process_run_has_no_worker_table(page: Page, tmp_path: Path) -> None:
    await _show(page, tmp_path)
    assert await page.value("document.getElementById('workers').hidden")
