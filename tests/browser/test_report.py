"""The report of a run, opened as a file."""

import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.browser import run_views as models
from tests.browser.tab import Page

from batch_agent.observe.report.html import report_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

Show = Callable[[models.Model], Awaitable[Page]]

RUNS: dict[str, Callable[[], models.Model]] = {
    "plain": models.plain,
    "flow": models.flow,
    "running": lambda: models.cut(models.plain(), 9),
    "ten thousand": lambda: models.plain(10_000, slots=300, turns=6),
    "one agent": lambda: models.plain(1, slots=1, scale=0.03, turns=1),
    "no agents": lambda: models.plain(0),
    "three days": lambda: models.plain(300, scale=5_000),
    "evaluated": models.evaluated,
    "hostile": models.hostile,
    "nulls": lambda: models.nulls(models.flow()),
    "bare": models.bare,
    "waiting": lambda: models.bare() | {"state": "waiting"},
    "nothing at all": lambda: {},
}

CONTRAST = """(() => {
    const channel = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const parsed = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
    const ground = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const color = parsed(getComputedStyle(at).backgroundColor);
            if (color.length < 4 || color[3] > 0.9) return color;
        }
        return [255, 255, 255];
    };
    const names = "h1, h2, h3, p, dt, dd, th, td, li, a, summary, code, label, button:not(:disabled), .badge, .key";
    const texts = [...document.querySelectorAll(names)];
    const shown = texts.filter((node) => node.offsetParent && node.innerText.trim());
    return shown.map((node) => {
        const [a, b] = [light(parsed(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
        return [(a + 0.05) / (b + 0.05), `${node.tagName}.${node.className}: ${node.innerText.slice(0, 40)}`];
    }).sort((x, y) => x[0] - y[0]);
})()"""
"""Of every text that is seen: its contrast as WCAG counts it, and what it is; the worst first."""

GENERATING, FAILED = bytes.fromhex("1a74d2"), bytes.fromhex("b5124e")
PAINTED = """(() => {
    const target = document.getElementById("rows-canvas");
    const pixels = target.getContext("2d").getImageData(0, 0, target.width, target.height).data;
    const seen = new Set();
    for (let at = 0; at < pixels.length; at += 4) seen.add(pixels[at] << 16 | pixels[at + 1] << 8 | pixels[at + 2]);
    return [...seen].map((color) => "#" + color.toString(16).padStart(6, "0"));
})()"""


@pytest_asyncio.fixture(loop_scope="session")
async def show(page: Page, tmp_path: Path) -> Show:
    async def opened(model: models.Model) -> Page:
        path = tmp_path / "report.html"
        path.write_bytes(report_of(model))
        await page.open(path.as_uri())
        return page

    return opened


@pytest.mark.parametrize("run", RUNS)
async def test_a_report_opens_without_the_network_and_without_an_error(show: Show, run: str) -> None:
    page = await show(RUNS[run]())
    assert [url.split("/")[-1] for url in page.requests if not url.startswith("data:")] == ["report.html"]
    assert page.errors == []
    said = await page.text("body")
    assert not {"null", "undefined", "NaN", "Infinity", "[object Object]"} & set(said.replace(",", " ").split())


@pytest.mark.parametrize("run", RUNS)
async def test_nothing_is_wider_than_a_phone(show: Show, page: Page, run: str) -> None:
    await page.emulate(375, 812, touch=True)
    await show(RUNS[run]())
    assert await page.value("document.documentElement.scrollWidth") <= 375
    assert await page.value(
        "[...document.querySelectorAll('main section')].every(e => e.getBoundingClientRect().right <= 375)"
    )


async def test_a_report_shows_the_numbers_of_the_run(show: Show) -> None:
    model = models.plain(1_234, failing=0.05)
    page = await show(model)
    stage = model["stages"][0]
    head, tiles = await page.text("#head"), await page.text("#summary")
    assert "results.jsonl.checkpoint" in head
    assert "Finished" in head
    assert "sim-7b on vllm" in head
    assert f"{stage['answered']:,} answered" in head
    assert f"{stage['failed']:,} failed" in head
    for number in (
        f"{stage['answered']:,}",
        f"of {stage['total']:,}",
        "77 % from the prefix cache",
        f"{stage['turns']:,}",
    ):
        assert number in tiles
    exact = await page.value("[...document.querySelectorAll('#summary [title]')].map(e => e.title)")
    assert exact == [f"{number:,}" for number in (stage["usage"]["input"], stage["usage"]["output"], _requested(model))]
    for tool in model["tools"]:
        row = await page.value(
            f"[...document.querySelectorAll('#tools tr')].find(e => e.innerText.includes('{tool['name']}')).innerText"
        )
        assert [f"{tool[name]:,}" in row for name in ("requested", "executed", "shared", "cached", "failed")] == [
            True
        ] * 5
    for group in stage["failures"]:
        assert group["kind"] in await page.text("#failures")
        assert f"{group['count']:,} agent" in await page.text("#failures")


async def test_a_report_shows_scores_comparisons_and_samples(show: Show) -> None:
    page = await show(models.evaluated())
    said = " ".join((await page.text("#evaluation")).split())
    assert "small exact 0.800 0.490 to 0.943 10 10 0" in said
    assert "small → large" in said
    assert "Agreement 0.500" in said
    assert "+0.100 −0.100 to +0.300" in said
    assert "Changed inputs (7)" in said
    await page.value("document.querySelector('#evaluation details').open = true")
    assert "<b>no</b> | maybe" in await page.text("#evaluation details")
    names = await page.value(
        "[...document.querySelectorAll('#results button.agent')].slice(0, 4).map(e => e.innerText)"
    )
    assert names == ["0~0", "0~1", "0~2", "1~0"]
    assert await _score_cells(page, "exact") == ["0", "1", "0", "1"]
    await page.value("document.querySelector('[data-sort=\"score.exact\"]').click()")
    assert await _score_cells(page, "exact") == ["1", "1", "1", "1"]
    await page.value("document.querySelector('[data-sort=\"score.<i>judge</i>\"]').click()")
    assert await _score_cells(page, "<i>judge</i>") == ["0.500", "0.500", "0.500", "0.500"]
    await page.value("document.querySelector('[data-sort=index]').click()")
    await page.value("document.querySelectorAll('#results button.agent')[2].click()")
    assert "Agent 0~2" in await page.text("#panel")
    assert "--agent 0~2" in await page.text("#panel")
    assert "Score exact\n0" in await page.text("#panel")


async def _score_cells(page: Page, name: str) -> list[str]:
    """The first cells of a column."""
    cells = f"[...document.querySelectorAll('#results td[data-name=\"{name}\"]')].slice(0, 4).map(e => e.innerText)"
    return [str(each) for each in await page.value(cells)]


async def test_savings_show_their_baseline_or_are_shown_as_unknown(show: Show) -> None:
    model = models.plain()
    page = await show(model)
    said = await page.text("#savings")
    first, _, unknown = model["savings"]
    assert f"{first['saved']:,} tokens" in said
    assert f"77 % less than the {first['without']:,} tokens without it" in said
    assert first["formula"] not in said
    assert "unknown" in said
    assert unknown["basis"] in said
    await page.click("#savings summary")
    await page.until("document.querySelector('#savings details').open")
    assert first["formula"] in await page.text("#savings")


async def test_a_flow_has_a_row_for_each_stage(show: Show) -> None:
    page = await show(models.flow())
    rows = await page.value("[...document.querySelectorAll('#stages tbody tr')].map(e => e.innerText.split(/\\s/)[0])")
    assert rows == ["read", "judge", "merge"]
    assert "2 processes, 1 resume" in await page.text("#head")
    assert await page.value("document.querySelectorAll('#charts .mark.resume').length") == 3


async def test_an_unfinished_run_shows_agent_states_and_remaining_time(show: Show) -> None:
    model = models.cut(models.plain(), 9)
    page = await show(model)
    head = await page.text("#head")
    for state, name in (("generating", "generating"), ("tools", "in tools"), ("waiting", "waiting")):
        assert f"{model['stages'][0]['states'][state]} {name}" in head
    assert "Running" in head
    assert f"{model['throughput']['eta']:.1f} s" in await page.text("#summary")


async def test_empty_sections_of_the_report_are_left_out(show: Show) -> None:
    page = await show(models.bare())
    assert await page.value("[...document.querySelectorAll('main section:not([hidden])')].map(e => e.id)") == [
        "summary"
    ]
    assert "Ended early" in await page.text("#head")
    assert "This run has no recorded events." in await page.text("#summary")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("run", ["flow", "running"])
async def test_every_text_of_the_report_has_enough_contrast(show: Show, page: Page, scheme: str, run: str) -> None:
    await page.emulate(scheme=scheme)
    await show(RUNS[run]())
    await page.value("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    found = await page.value(CONTRAST)
    assert len(found) > 100
    assert [(round(ratio, 2), what) for ratio, what in found if ratio < 4.5] == []


async def test_the_report_follows_the_dark_or_light_color_scheme(show: Show, page: Page) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        await page.emulate(scheme=scheme)
        await show(models.plain(50))
        grounds.append(
            (await page.value("getComputedStyle(document.body).backgroundColor"), sorted(await page.value(PAINTED))[0])
        )
    assert grounds[0][0] == "rgb(246, 247, 249)"
    assert grounds[1][0] == "rgb(14, 17, 21)"
    assert grounds[0] != grounds[1]


@pytest.mark.parametrize(("agents", "slots"), [(40, 8), (10_000, 300), (100_000, 2_000)])
async def test_every_agent_is_drawn_in_the_timeline(show: Show, agents: int, slots: int) -> None:
    page = await show(models.plain(agents, slots=slots, failing=0.1))
    assert await page.value("timeline.rows.length") == agents
    painted = [bytes.fromhex(color[1:]) for color in await page.value(PAINTED)]
    for color in (GENERATING, FAILED):
        assert any(max(abs(a - b) for a, b in zip(color, other, strict=True)) < 4 for other in painted)


async def test_model_output_is_never_rendered_as_markup(show: Show) -> None:
    clean = await show(models.flow(40))
    elements = await clean.value(
        "['img', 'script', 'b', 'iframe', 'link'].map(name => document.querySelectorAll(name).length)"
    )
    page = await show(models.hostile())
    await page.value("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    await page.click("#slowest .agent")
    await page.until("!document.querySelector('#panel').hidden")
    assert await page.value("document.querySelector('h1').textContent") == models.HOSTILE
    assert models.HOSTILE in await page.value("document.querySelector('#latest .quote').textContent")
    assert await page.value("document.title") == f"{models.HOSTILE} · BatchAgent"
    found = await page.value(
        "['img', 'script', 'b', 'iframe', 'link'].map(name => document.querySelectorAll(name).length)"
    )
    bold = await page.value("document.querySelectorAll('#panel b').length")
    assert [found[0], found[1], found[3], found[4]] == [elements[0], elements[1], elements[3], elements[4]]
    assert found[2] - bold == elements[2]
    assert page.errors == []


async def test_durations_are_shown_in_fitting_units(show: Show) -> None:
    page = await show(models.bare())
    lengths = [0, 0.0004, 0.005, 0.12, 1.234, 12.34, 59.97, 252, 3_600, 11_100, 187_200]
    assert await page.value(f"{lengths}.map(format.seconds)") == [
        "0 s", "< 1 ms", "5 ms", "120 ms", "1.23 s", "12.3 s", "1 min", "4 min 12 s", "1 h", "3 h 5 min", "2 d 4 h",
    ]  # fmt: skip
    marks = [
        [0.02, 0.005],
        [0.5, 0.1],
        [45, 15],
        [90, 30],
        [144.5, 0.5],
        [600, 300],
        [5_400, 1_800],
        [21_600, 21_600],
        [108_000, 21_600],
    ]
    assert await page.value(f"{marks}.map(([at, step]) => format.axis(at, step))") == [
        "20 ms", "0.5 s", "45 s", "1:30", "2:24.5", "10 min", "1 h 30 min", "6 h", "1 d 6 h",
    ]  # fmt: skip
    moments = [[12.345, 8], [144.56, 3], [144.56, 300], [7_384, 9_000], [187_200, 200_000]]
    assert await page.value(f"{moments}.map(([at, width]) => format.moment(at, width))") == [
        "12.35 s", "2:24.56", "2:25", "2:03:04", "2 d 4 h",
    ]  # fmt: skip


async def test_a_truncated_report_shows_that_it_is_truncated(show: Show, page: Page, tmp_path: Path) -> None:
    await show(models.plain(5))
    path = tmp_path / "report.html"
    path.write_bytes(path.read_bytes().replace(b'"format":1,', b'"format":1,,'))
    await page.open(path.as_uri())
    assert "The report could not be parsed" in await page.text("#notice")


async def test_a_printed_report_is_light_and_has_all_sections_open(show: Show, page: Page) -> None:
    await page.emulate(scheme="dark")
    await show(models.plain())
    await page.value("dispatchEvent(new Event('beforeprint'))")
    assert await page.value("getComputedStyle(document.documentElement).getPropertyValue('--card')") == "#ffffff"
    assert await page.value("[...document.querySelectorAll('details')].every(e => e.open)")
    await page.value("dispatchEvent(new Event('afterprint'))")
    assert await page.value("getComputedStyle(document.documentElement).getPropertyValue('--card')") == "#161a20"
    assert not await page.value("[...document.querySelectorAll('details')].some(e => e.open)")


def _requested(model: models.Model) -> Any:
    return sum(tool["requested"] for tool in model["tools"])


async def test_one_broken_field_does_not_break_the_report_page(show: Show) -> None:
    page = await show(models.flow(12))
    chance = random.Random(5)
    for _ in range(60):
        model = models.broken(models.flow(12), chance)
        await page.value(f"main.show({json.dumps(model)})")
        assert await page.value("document.documentElement.scrollWidth") <= 1280
    assert page.errors == []
