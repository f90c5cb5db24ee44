"""What pointers and keys do on the time axis and in the rows of agents."""

from pathlib import Path

import pytest
import pytest_asyncio
from tests.browser import run_views as models
from tests.browser.agent_attempts import lives_of
from tests.browser.tab import Page

from batch_agent.observe.report.html import report_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHOWN = "[span.from, span.to, span.whole]"
TIP = "(document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').innerText)"
PANEL = "(document.querySelector('#panel').hidden ? '' : document.querySelector('#panel').innerText)"


@pytest_asyncio.fixture(loop_scope="session")
async def report(page: Page, tmp_path: Path) -> Page:
    path = tmp_path / "report.html"
    path.write_bytes(report_of(models.plain(300, failing=0.1)))
    await page.open(path.as_uri())
    return page


@pytest_asyncio.fixture(loop_scope="session")
async def many(page: Page, tmp_path: Path) -> Page:
    path = tmp_path / "many.html"
    path.write_bytes(report_of(models.plain(10_000, slots=300, turns=6)))
    await page.open(path.as_uri())
    return page


async def test_hovering_a_chart_shows_all_values_at_that_time(report: Page) -> None:
    await report.point("#agents-chart .plot", 0.5)
    said = await report.until(TIP)
    assert said.startswith("at ")
    for name in (
        "generating",
        "in tools",
        "waiting",
        "in flight",
        "limit",
        "held by agents",
        "in use (server)",
    ):
        assert name in said
    await report.point("h1")
    await report.until(f"{TIP} === ''")


async def test_hovering_a_pause_shows_its_reason(report: Page) -> None:
    plot = "document.querySelector('#agents-chart .plot').clientWidth"
    x = await report.value(f"plots.scale({plot}).x(span.whole * 0.41) / {plot}")
    await report.point("#agents-chart .plot", x)
    assert "rate limited" in await report.until(TIP)


async def test_arrow_keys_move_the_chart_tooltip(report: Page) -> None:
    await report.value("document.querySelector('#agents-chart .plot').focus()")
    await report.press("ArrowRight", "ArrowRight", "ArrowRight")
    assert (await report.until(TIP)).startswith("at ")
    assert "generating" in await report.value("document.querySelector('#rows-announcement').textContent")


async def test_a_late_scroll_event_does_not_hide_a_newer_tooltip(report: Page) -> None:
    await report.value("addEventListener('scroll', () => { window.heard = true; })")
    await report.value(
        """(() => {
            const chart = document.querySelector("#agents-chart .plot");
            chart.focus();
            chart.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
        })()"""
    )
    await report.until("window.heard")
    assert await report.value("scrollY") > 0
    assert (await report.value(TIP)).startswith("at ")
    await report.value("scrollBy(0, 40)")
    await report.until(f"{TIP} === ''")


async def test_rows_scrolled_before_the_pointer_arrives_show_their_tooltip(many: Page) -> None:
    await many.click("[data-do=rows-taller]")
    await many.box("#rows")
    await many.value(
        """(() => {
            const rows = document.querySelector("#rows");
            rows.addEventListener("scroll", () => { window.heard = true; });
            const { left, top, width, height } = rows.getBoundingClientRect();
            const middle = { clientX: left + width / 2, clientY: top + height / 2, bubbles: true };
            rows.scrollTop = 4000;
            rows.dispatchEvent(new PointerEvent("pointermove", middle));
        })()"""
    )
    await many.until("window.heard")
    assert (await many.value(TIP)).startswith("Agent ")
    await many.value("document.querySelector('#rows').scrollTop = 0")
    await many.until(f"{TIP} === ''")


async def test_dragging_zooms_the_timeline_and_a_double_click_resets_it(report: Page) -> None:
    await report.drag("#agents-chart .plot", 0.3, 0.5)
    start, end, whole = await report.until(f"!span.isWhole && {SHOWN}")
    assert end - start < whole * 0.25
    assert whole * 0.2 < start < whole * 0.35
    x, y = await report.point("#agents-chart .plot")
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            await report.mouse(kind, x, y, button="left", clickCount=count)
    assert await report.until(f"span.isWhole && {SHOWN}") == [0, whole, whole]


async def test_the_mouse_wheel_zooms_only_with_the_control_key(report: Page) -> None:
    x, y = await report.point("#rows")
    whole = (await report.value(SHOWN))[2]
    before = await report.value("scrollY")
    await report.mouse("mouseWheel", x, y, deltaX=0, deltaY=-100)
    await report.until(f"scrollY < {before}")
    assert await report.value(SHOWN) == [0, whole, whole]
    x, y = await report.point("#rows")
    await report.mouse("mouseWheel", x, y, deltaX=0, deltaY=-100, modifiers=2)
    start, end, _ = await report.until(f"!span.isWhole && {SHOWN}")
    assert start > 0
    assert end < whole


async def test_a_pinch_zooms_the_timeline(page: Page, report: Page) -> None:
    await page.emulate(375, 812, touch=True)
    left, top, width, height = await page.box("#rows")
    middle, y = left + width / 2, top + height / 2
    for spread in (30, 60, 120):
        points = [{"x": middle - spread, "y": y, "id": 0}, {"x": middle + spread, "y": y, "id": 1}]
        await page.call(
            "Input.dispatchTouchEvent", type="touchStart" if spread == 30 else "touchMove", touchPoints=points
        )
    await page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    await page.until("span.to - span.from < span.whole / 2")


async def test_buttons_and_keys_zoom_and_move_the_timeline(report: Page) -> None:
    whole = (await report.value(SHOWN))[2]
    await report.click("[data-do=zoom-in]")
    start, end, _ = await report.until(f"!span.isWhole && {SHOWN}")
    assert end - start == pytest.approx(whole / 2)
    await report.value("document.querySelector('#rows').focus()")
    await report.press("+", "ArrowRight")
    inside = start + whole / 8  # where the second zoom alone begins
    later, end, _ = await report.until(f"span.from > {inside} + 0.001 && {SHOWN}")
    assert end - later == pytest.approx(whole / 4)
    await report.press("0")
    await report.until("span.isWhole")
    await report.value("document.querySelector('.handle.from').focus()")
    await report.press("ArrowRight", "ArrowRight")
    start, end, _ = await report.until(f"span.from > span.whole * 0.06 && {SHOWN}")
    assert end == whole


async def test_the_overview_strip_selects_and_moves_the_visible_range(report: Page) -> None:
    await report.drag("#range", 0.2, 0.4)
    start, end, whole = await report.until(f"!span.isWhole && {SHOWN}")
    assert start == pytest.approx(whole * 0.2, rel=0.02)
    assert end == pytest.approx(whole * 0.4, rel=0.02)
    await report.drag("#range", 0.3, 0.6)
    moved, end, _ = await report.until(f"span.from > {start} && {SHOWN}")
    assert moved == pytest.approx(start + whole * 0.3, rel=0.02)
    assert end - moved == pytest.approx(whole * 0.2, rel=0.02)


async def test_a_timeline_row_shows_what_its_agent_did_and_opens_on_a_click(report: Page) -> None:
    await report.click("[data-do=rows-taller]")
    await report.click("[data-do=rows-taller]")
    agent = await report.value("timeline.rows[Math.floor((document.querySelector('#rows').clientHeight * 0.5) / 4)]")
    index = await report.value(
        f"runModel.run(JSON.parse(document.getElementById('run').textContent)).agents.index[{agent}]"
    )
    await report.point("#rows", 0.5, 0.5)
    said = await report.until(TIP)
    assert said.startswith(f"Agent {index}")
    assert "generating" in said
    await report.click("#rows", 0.5, 0.5)
    panel = await report.until(PANEL)
    assert panel.startswith(f"Agent {index}\n")
    assert "Steps" in panel
    assert await report.value("document.activeElement.id") == "panel"
    await report.press("Escape")
    await report.until("document.querySelector('#panel').hidden")
    assert await report.value("document.activeElement.id") == "rows"
    assert len(report.requests) == len([url for url in report.requests if url.startswith(("file:", "data:"))])


async def test_keys_select_an_agent_of_the_timeline_and_open_it(report: Page) -> None:
    await report.value("document.querySelector('#rows').focus()")
    await report.press("ArrowDown", "ArrowDown", "ArrowUp", "ArrowDown")
    second = await report.value("timeline.rows[1]")
    assert "Agent" in await report.value("document.querySelector('#rows-announcement').textContent")
    await report.press("Enter")
    index = await report.value(
        f"runModel.run(JSON.parse(document.getElementById('run').textContent)).agents.index[{second}]"
    )
    assert (await report.until(PANEL)).startswith(f"Agent {index}\n")


async def test_an_example_of_a_failure_opens_the_agent_with_its_error(report: Page) -> None:
    await report.click("#failures summary")
    await report.until("document.querySelector('#failures details').open")
    await report.click("#failures .agent")
    panel = await report.until(PANEL)
    assert "Failed" in panel
    assert "The server said 400" in panel


async def test_timeline_agents_can_be_filtered_sorted_and_searched(report: Page) -> None:
    async def ask(name: str, value: str) -> list[int]:
        await report.choose(f"[data-filter={name}]", value)
        return [int(row) for row in await report.value("[...timeline.rows]")]

    lives = lives_of(models.plain(300, failing=0.1)["timeline"])
    assert await ask("only", "failed") == [row for row, life in enumerate(lives) if life.ok == 0]
    await ask("only", "all")
    lengths = [lives[row].end - lives[row].start for row in await ask("order", "duration")]
    assert lengths == sorted(lengths, reverse=True)
    assert [lives[row].index for row in await ask("order", "index")] == list(range(300))
    await ask("only", "failed")
    await report.value("document.querySelector('#find input').value = '123'")
    await report.click("#find button")
    assert (await report.until(PANEL)).startswith("Agent 123\n")
    await report.value(
        "document.querySelector('#find input').value = '4711'; document.querySelector('#find').requestSubmit()"
    )
    assert "was not found" in await report.text("#agents-note")


async def test_rows_that_share_a_pixel_are_summarized_and_listed_on_a_click(many: Page) -> None:
    await many.point("#rows", 0.5, 0.5)
    said = await many.until(TIP)
    assert "agents (first: " in said
    assert "click for taller rows" in said
    await many.click("#rows", 0.5, 0.5)
    await many.until("document.querySelector('#rows').scrollTop > 0")
    await many.point("#rows", 0.5, 0.5)
    assert (await many.until(TIP)).startswith("Agent ")
    await many.click("[data-do=rows-fit]")
    await many.until("document.querySelector('#rows').scrollHeight <= document.querySelector('#rows').clientHeight")


async def test_zooming_leaves_out_agents_outside_the_range(many: Page) -> None:
    await many.drag("#agents-chart .plot", 0.5, 0.52)
    some = await many.until("timeline.rows.length < 10_000 && timeline.rows.length")
    assert 300 < some < 2_000
    assert f"{some:,} agents of 10,000" in await many.text("#agents-note")
    await many.click("[data-filter=isVisibleOnly]")
    await many.until("timeline.rows.length === 10_000")
