"""The table of results and the story of an agent, as a reader uses them."""

import json
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
SHOWN = "[...document.querySelectorAll('#results tbody .agent')].map(e => Number(e.dataset.agent))"
TITLE = "document.querySelector('#panel-title')?.innerText"


@pytest_asyncio.fixture(loop_scope="session")
async def show(page: Page, tmp_path: Path) -> Show:
    async def opened(model: models.Model) -> Page:
        path = tmp_path / "report.html"
        path.write_bytes(report_of(model))
        await page.open(path.as_uri())
        return page

    return opened


def indices(model: models.Model, status: int) -> list[int]:
    timeline = model["timeline"]
    return sorted(index for index, ok in zip(timeline["index"], timeline["ok"], strict=True) if ok == status)


def column(model: models.Model, name: str) -> dict[int, Any]:
    return dict(zip(model["timeline"]["index"], model["results"][name], strict=True))


async def search(page: Page, query: str) -> None:
    await page.value(f"document.querySelector('#results [name=query]').value = {query!r}")
    await page.value(
        "document.querySelector('#results [name=query]').dispatchEvent(new Event('input', {bubbles: true}))"
    )
    await page.frame()


async def test_a_row_has_what_the_agent_received_answered_and_used(show: Show) -> None:
    model = models.plain(30, failing=0)
    page = await show(model)
    row = await page.value("document.querySelector('#results tbody tr:nth-child(4)').innerText")
    tokens, turns = column(model, "tokens_in")[3], column(model, "turns")[3]
    cost = (column(model, "cached")[3] * 0.05 + (tokens - column(model, "cached")[3]) * 0.5) / 1e6
    cost += column(model, "tokens_out")[3] * 1.5 / 1e6
    for part in (
        "3",
        "answered",
        "Letter 3 of many",
        '"number": 3',
        "length",
        f"{turns}",
        f"{tokens:,}",
        f"${cost:.6f}",
    ):
        assert part in row
    assert await page.value(SHOWN) == list(range(20))
    assert "1 to 20 of 30" in await page.text("#results .pager")


async def test_results_are_filtered_by_status_and_error(show: Show) -> None:
    model = models.plain(200, failing=0.2)
    page = await show(model)
    failed = indices(model, 0)
    await page.choose("#results [data-filter=status]", "failed")
    assert await page.value(SHOWN) == failed[:20]
    assert f"{len(failed)} agents of 200" in await page.text("#results")
    kind = model["results"]["errors"][1][0]
    await page.choose("#results [data-filter=kind]", kind)
    assert await page.value(SHOWN) == [index for index in failed if index % 4 == 1][:20]
    await page.choose("#results [data-filter=kind]", "all")
    await page.choose("#results [data-filter=status]", "truncated")
    assert await page.value(SHOWN) == [index for index in indices(model, 1) if index % 7 == 3][:20]


async def test_results_are_searched_by_input_answer_error_and_index(show: Show) -> None:
    model = models.plain(200, failing=0.2)
    page = await show(model)
    await search(page, "LETTER 17 of")
    assert await page.value(SHOWN) == [17]
    await search(page, "no room, schema")
    assert await page.value(SHOWN) == [index for index in indices(model, 0) if index % 4 == 2][:20]
    await search(page, "nothing has this")
    assert "No agents match the filter." in await page.text("#results")
    await search(page, "")
    assert await page.value(SHOWN) == list(range(20))


async def test_a_heading_sorts_and_sorts_the_other_way_when_it_is_used_again(show: Show) -> None:
    model = models.plain(60, failing=0.1)
    page = await show(model)
    seconds = column(model, "seconds")
    slowest = sorted(seconds, key=lambda index: (-seconds[index], index))
    fastest = sorted(seconds, key=lambda index: (seconds[index], index))
    await page.click("#results [data-sort=seconds]")
    assert await page.value(SHOWN) == slowest[:20]
    assert await page.value("document.querySelector('#results [aria-sort]').getAttribute('aria-sort')") == "descending"
    await page.click("#results [data-sort=seconds]")
    assert await page.value(SHOWN) == fastest[:20]
    await page.click("#results [data-do=results-last]")
    assert await page.value(SHOWN) == fastest[40:]
    await page.click("#results [data-do=results-previous]")
    assert await page.value(SHOWN) == fastest[20:40]


async def test_ten_thousand_results_have_the_rows_of_one_page_in_the_document(show: Show) -> None:
    page = await show(models.plain(10_000, slots=300, turns=6))
    assert await page.value("document.querySelectorAll('#results tbody tr').length") == 20
    await search(page, "letter 99")
    assert await page.value("results.rows.length") == 111  # 99, 990 to 999, 9900 to 9999
    await page.click("#results [data-sort=cost]")
    await page.click("#results [data-do=results-last]")
    assert await page.value("document.querySelectorAll('#results tbody tr').length") == 11
    assert page.errors == []


async def test_a_group_of_failures_leads_to_its_rows(show: Show) -> None:
    model = models.plain(100, failing=0.3)
    page = await show(model)
    await search(page, "letter 1")
    await page.value("document.querySelectorAll('#failures details').forEach(e => { e.open = true; })")
    kind = await page.value("document.querySelector('#failures [data-kind]').dataset.kind")
    await page.click("#failures [data-kind]")
    wanted = [each[0] for each in model["results"]["errors"]].index(kind)
    assert await page.value(SHOWN) == [index for index in indices(model, 0) if index % 4 == wanted][:20]
    assert await page.value("document.querySelector('#results [data-filter=kind]').value") == kind


async def test_an_agent_without_a_result_is_running_only_while_its_run_is(show: Show) -> None:
    running = models.cut(models.plain(), 9)
    page = await show(running)
    await page.choose("#results [data-filter=status]", "running")
    unfinished = indices(running, 2)
    assert await page.value(SHOWN) == unfinished[:20]
    page = await show(running | {"state": "ended early"})
    await page.choose("#results [data-filter=status]", "interrupted")
    assert await page.value(SHOWN) == unfinished[:20]
    await page.click("#results tbody .agent")
    await page.until("!document.querySelector('#panel').hidden")
    assert "Interrupted" in await page.text("#panel .panel-head")
    assert not {"running", "Running"} & set((await page.text("body")).split())


async def test_the_story_of_an_agent_has_its_texts_and_what_all_agents_share(show: Show) -> None:
    model = models.plain(60, failing=0.3)
    page = await show(model)
    failed = indices(model, 0)[0]
    await page.choose("#results [data-filter=status]", "failed")
    await page.click("#results tbody .agent")
    await page.value("document.querySelectorAll('#panel details').forEach(e => { e.open = true; })")
    said = await page.text("#panel")
    assert f"Agent {failed}" in said
    assert "The server said 400: no room" in said
    assert f"Letter {failed} of many" in said
    for part in ("You are a geographer.", "look_up", "Look a key up."):
        assert part in said
    assert "running" not in said.lower()


async def test_previous_and_next_follow_the_order_of_the_table(show: Show) -> None:
    model = models.plain(100, failing=0.5)
    page = await show(model)
    failed = indices(model, 0)
    await page.choose("#results [data-filter=status]", "failed")
    await page.click("#results tbody .agent")
    assert await page.value(TITLE) == f"Agent {failed[0]}"
    assert await page.value("document.querySelector('[data-do=panel-previous]').disabled")
    await page.click("[data-do=panel-next]")
    assert await page.value(TITLE) == f"Agent {failed[1]}"
    await page.press("ArrowRight", "j", "j")
    assert await page.value(TITLE) == f"Agent {failed[4]}"
    await page.press("ArrowLeft", "k")
    assert await page.value(TITLE) == f"Agent {failed[2]}"
    await page.press(*["j"] * 18)
    assert await page.value(TITLE) == f"Agent {failed[20]}"
    assert await page.value(SHOWN) == failed[20:40]  # the table turns its page
    assert await page.value("document.querySelectorAll('#results tr.selected').length") == 1
    await page.press("Escape")
    assert await page.value("document.querySelector('#panel').hidden")


async def test_keys_that_are_typed_into_the_search_do_not_change_the_agent(show: Show) -> None:
    page = await show(models.plain(40))
    await page.click("#results tbody .agent")
    await page.value("document.querySelector('#results [name=query]').focus()")
    await page.press("j", "k")
    assert await page.value(TITLE) == "Agent 0"
    assert await page.value("document.querySelector('#results [name=query]').value") == "jk"


async def test_a_text_is_copied_whole(show: Show, page: Page) -> None:
    await page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    await show(models.plain(20))
    await page.click("#description [data-do=copy]")
    await page.until("document.querySelector('#description [data-do=copy]').innerText === 'Copied'")
    assert await page.value("navigator.clipboard.readText()") == "Read {note} and name the city."


async def test_without_a_clipboard_a_text_is_copied_through_a_selection(show: Show, page: Page) -> None:
    """Pages of a server on another host have none."""
    await page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    await show(models.plain(20))
    await page.value("navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed'))")
    await page.click("#description [data-do=copy]")
    await page.until("document.querySelector('#description [data-do=copy]').innerText === 'Copied'")
    assert await page.value("navigator.clipboard.readText()") == "Read {note} and name the city."


async def test_task_and_options_are_shown_for_each_stage(show: Show) -> None:
    page = await show(models.flow())
    assert await page.value("document.querySelectorAll('#description article').length") == 3
    await page.value("document.querySelectorAll('#description details').forEach(e => { e.open = true; })")
    said = await page.text("#description")
    for part in ("Read {note} in judge", '"city"', "max_turns", "6", "vllm://localhost:8000", '"api_key": "***"'):
        assert part in said


@pytest.mark.parametrize("width", [390, 1280, 1600])
async def test_no_text_of_the_table_overlaps_another(show: Show, page: Page, width: int) -> None:
    await page.emulate(width, 844, touch=width < 600)
    await show(models.plain(60, failing=0.3))
    assert await page.value("document.documentElement.scrollWidth") <= width
    overlaps = """(() => {
        const boxes = [...document.querySelectorAll('#results td, #results th, #results .bar label')]
            .filter((e) => e.offsetParent).map((e) => [e, e.getBoundingClientRect()]);
        const crosses = (a, b, from, to) => a[from] < b[to] - 1 && b[from] < a[to] - 1;
        const meet = (a, b) => crosses(a, b, "left", "right") && crosses(a, b, "top", "bottom");
        const out = boxes.filter(([e]) => e.scrollWidth > e.clientWidth + 1).map(([e]) => `wide: ${e.innerText}`);
        for (let i = 0; i < boxes.length; i++)
            for (let j = i + 1; j < boxes.length; j++)
                if (meet(boxes[i][1], boxes[j][1])) out.push(`${boxes[i][0].innerText} | ${boxes[j][0].innerText}`);
        return out;
    })()"""
    assert await page.value(overlaps) == []


async def test_answers_that_were_cut_are_counted_unless_they_fit_a_schema(show: Show) -> None:
    model = models.plain(70, failing=0)
    page = await show(model)
    assert "10 cut at max_tokens" in await page.text("#summary")
    with_schema = models.flow()
    page = await show(with_schema)
    assert "cut at max_tokens" not in await page.text("#summary")
    assert "truncated" not in await page.text("#results .bar")


async def test_json_has_spaces_where_lines_may_break(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(report_of(models.bare()))
    await page.open(path.as_uri())
    answers = ['{"a":"x, y:z","b":[1,2],"c":"\\"q\\",r"}', '{"cut":"in the mid', "text: as,it is", '{"a": 1, "b": 2}']
    shown = [await page.value(f"format.spaced({json.dumps(answer)})") for answer in answers]
    assert shown == [json.dumps(json.loads(answers[0])), '{"cut": "in the mid', answers[2], answers[3]]


def keyed() -> models.Model:
    """A run with `key=`: every agent has the key of its row."""
    model = models.plain()
    keys = [f"order/{index:04}.eu" for index in model["timeline"]["index"]]
    return {**model, "results": {**model["results"], "key": keys}}


async def test_rows_have_the_keys_of_their_inputs_and_are_found_by_them(show: Show) -> None:
    page = await show(keyed())
    headings = await page.value("[...document.querySelectorAll('#results th')].map(e => e.innerText.trim())")
    assert headings[:3] == ["Agent", "Key", "Status"]
    await page.value("document.querySelector('#results [name=query]').value = 'ORDER/0017'")
    await page.value(
        "document.querySelector('#results [name=query]').dispatchEvent(new Event('input', { bubbles: true }))"
    )
    assert await page.value(SHOWN) == [17]
    await page.click("#results .agent")
    assert "order/0017.eu" in await page.text("#panel")


async def test_a_run_without_keys_has_no_column_for_them(show: Show) -> None:
    page = await show(models.plain())
    assert await page.value("document.querySelectorAll('#results .key-of-row, #slowest .key-of-row').length") == 0


async def test_on_a_phone_an_agent_and_its_status_are_side_by_side_above_its_key(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(report_of(keyed()))
    await page.emulate(width=390, touch=True)
    await page.open(path.as_uri())
    name, status, key = [
        await page.value(f"document.querySelector('#results tbody tr td.{each}').getBoundingClientRect().toJSON()")
        for each in ("name", "status", "key-of-row")
    ]
    assert name["right"] <= status["left"]
    assert status["top"] < name["bottom"]
    assert max(name["bottom"], status["bottom"]) <= key["top"]
    assert await page.value("document.documentElement.scrollWidth") <= 390


async def test_addresses_break_behind_a_slash(show: Show) -> None:
    page = await show(models.plain())
    script = "dom.breakable('HTTP 400 from http://host:8000/v1/chat').map(e => e.nodeName ?? e)"
    assert await page.value(script) == ["HTTP 400 from http://host:8000/", "WBR", "v1/", "WBR", "chat"]
