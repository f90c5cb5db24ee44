"""The page of `batch-agent serve`: it follows a run, and leaves alone what the reader does."""

import pytest
from tests.browser import run_views as models
from tests.browser.live_server import Served, serving
from tests.browser.tab import Page

pytestmark = pytest.mark.asyncio(loop_scope="session")

WHOLE = models.plain(300)


async def test_a_live_report_page_shows_new_events(page: Page) -> None:
    served = Served(models.cut(WHOLE, 5))
    async with serving(served) as url:
        await page.open(url)
        await page.until("document.querySelector('#state')?.innerText === 'Running'")
        before = served.model["stages"][0]["answered"]
        assert f"{before} answered" in await page.text("#head")
        served.change(models.cut(WHOLE, 12))
        await page.until(f"!document.querySelector('#head').innerText.includes('{before} answered')")
        assert f"{served.model['stages'][0]['answered']} answered" in await page.text("#head")
        assert await page.value("span.whole") == 12
        served.change(WHOLE)
        await page.until("document.querySelector('#state').innerText === 'Finished'")
        assert page.errors == []


async def test_open_sections_and_zoom_survive_updates_of_the_page(page: Page) -> None:
    served = Served(models.cut(models.plain(300, failing=0.2), 20))
    async with serving(served) as url:
        await page.open(url)
        await page.until("document.querySelector('#state')")
        await page.click("#failures summary")
        await page.until("document.querySelector('#failures details').open")
        await page.drag("#agents-chart .plot", 0.4, 0.6)
        shown = await page.until("!span.isWhole && [span.from, span.to]")
        await page.choose("[data-filter=only]", "failed")
        await page.value("document.querySelector('#find input').value = '17'")
        await page.value("document.querySelector('#find input').focus({ preventScroll: true })")
        await page.value("scrollTo(0, 700)")
        await page.frame()
        served.change(models.cut(models.plain(300, failing=0.2), 25))
        await page.until("span.whole === 25")
        await page.frame()
        assert await page.value("[span.from, span.to]") == shown
        assert await page.value("document.querySelector('#failures details').open")
        assert await page.value("document.querySelector('[data-filter=only]').value") == "failed"
        assert await page.value("[...timeline.rows].length") > 0
        assert await page.value("[document.activeElement.name, document.activeElement.value]") == ["index", "17"]
        assert await page.value("scrollY") == 700


async def test_a_click_on_an_agent_loads_its_trace(page: Page) -> None:
    served = Served(models.flow(40))
    async with serving(served) as url:
        await page.open(url)
        await page.until("document.querySelector('#slowest .agent')")
        await page.click("#slowest .agent")
        await page.until("document.querySelector('#panel .trace')?.innerText.includes('said')")
        slowest = max(
            ((agent, stage["name"]) for stage in served.model["stages"] for agent in stage["slowest"]),
            key=lambda pair: pair[0]["seconds"],
        )
        traces = {asked for asked in served.asked if asked.startswith("/agent/")}
        assert traces == {f"/agent/{slowest[0]['index']}?stage={slowest[1]}"}
        assert await page.text("#panel .trace") == f"Agent {slowest[0]['index']}\n<b>said</b> something"
        await page.press("Escape")
        await page.until("document.activeElement.className === 'agent'")


async def test_a_live_page_polls_no_more_often_than_it_can_draw(page: Page) -> None:
    served = Served(models.cut(WHOLE, 5))
    async with serving(served) as url:
        await page.open(url)
        await page.until("document.querySelector('#state')")
        for tenth in range(200):
            served.change(models.cut(WHOLE, 5) | {"title": f"change {tenth}"})
        await page.until("document.querySelector('h1').innerText === 'change 199'")
        assert len(served.asked) < 20


async def test_a_live_page_shows_a_lost_connection_and_reconnects(page: Page) -> None:
    served = Served(models.cut(WHOLE, 5))
    async with serving(served) as url:
        await page.open(url)
        await page.until("document.querySelector('#state')")
        assert await page.value("document.querySelector('#notice').hidden")
    await page.until("document.querySelector('#notice').innerText.startsWith('Connection lost. Retrying')")
    assert "answered" in await page.text("#head")
    served.model = WHOLE
    async with serving(served):
        await page.until("document.querySelector('#state').innerText === 'Finished'")
        await page.until("document.querySelector('#notice').hidden")


async def test_a_live_page_shows_that_a_run_cannot_be_read(page: Page) -> None:
    served = Served(models.cut(WHOLE, 5))
    served.is_broken = True
    async with serving(served) as url:
        await page.open(url)
        await page.until("document.querySelector('#notice').innerText.includes('503')")
        served.is_broken = False
        served.change(WHOLE)
        await page.until("document.querySelector('#state')?.innerText === 'Finished'")


async def test_a_live_page_waits_for_a_run_that_has_not_started(page: Page) -> None:
    served = Served(models.bare() | {"state": "waiting"})
    async with serving(served) as url:
        await page.open(url)
        await page.until("document.querySelector('#state')?.innerText === 'Waiting'")
        assert "has not recorded any events yet" in await page.text("#summary")
        served.change(WHOLE)
        await page.until("document.querySelector('#state').innerText === 'Finished'")
        assert await page.value("timeline.rows.length") == 300
