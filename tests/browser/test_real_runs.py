"""Runs on the simulated engine, seen in a browser as a reader does: from the folder to the page."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.browser.tab import HANGS, Page

from batch_agent import BatchAgent, Results, Tool, Usage
from batch_agent.observe.report.html import write_report
from batch_agent.sim import Script, SimConfig, SimServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGENTS = 60


@Tool.define(effect="read")
async def look_up(key: str) -> str:
    """Look a key up."""
    await asyncio.sleep(0.05)
    return f"the value of {key}"


async def run(folder: Path, agents: int = AGENTS) -> Results:
    with SimServer(SimConfig(step_base_ms=2), Script(tool_turns=2, keys=5)) as sim:
        rows = [{"text": f"Note {number}. <img src=x onerror=alert(1)>"} for number in range(agents)]
        return await BatchAgent.run(
            task="Find out about {text}",
            inputs=rows,
            tools=[look_up],
            backend=sim.url,
            model="sim",
            checkpoint_dir=folder,
        )


@asynccontextmanager
async def serve(folder: Path) -> AsyncIterator[str]:
    """`batch-agent serve`, and the address that it says."""
    command = [sys.executable, "-m", "batch_agent.cli", "serve", str(folder), "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(HANGS):
            said = (await process.stdout.readline()).decode()
        found = re.search(r"http://\S+", said)
        assert found, said
        yield found[0]
    finally:
        process.terminate()
        await process.wait()


async def test_the_report_of_a_real_run_agrees_with_its_results(page: Page, tmp_path: Path) -> None:
    results = await run(tmp_path / "run")
    await page.open(write_report(tmp_path / "run").as_uri())
    head, tiles, tools = await page.text("#head"), await page.text("#summary"), await page.text("#tools")
    assert f"{AGENTS} answered" in head
    assert "Finished" in head
    usage = results.usage + Usage(32, 0, 1)  # of the request that finds out whether the server takes tools
    assert f"{usage.input:,}" in tiles
    assert f"{usage.output:,}" in tiles
    assert "incl. 32 for checks and summaries" in tiles  # so that the rows of the results add up to the rest
    assert f"{sum(len(result.tool_calls) for result in results):,}" in tools
    assert await page.value("timeline.rows.length") == AGENTS
    await page.click("#slowest .agent")
    await page.until("document.querySelector('#panel').innerText.includes('Steps')")
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []


async def test_a_live_page_follows_a_run_across_processes(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    await run(folder, agents=10)
    async with serve(folder) as url:
        await page.open(url)
        await page.until("document.querySelector('#head').innerText.includes('10 answered')")
        await run(folder)
        await page.until("document.querySelector('#head').innerText.includes('2 processes, 1 resume')")
        await page.until(f"document.querySelector('#head').innerText.includes('{AGENTS} answered')")
        await page.until("document.querySelector('#state').innerText === 'Finished'")
        await page.click("#slowest .agent")
        await page.until("document.querySelector('#panel .trace')?.innerText.includes('answered')")
        assert "<img src=x onerror=alert(1)>" in await page.text("#panel .trace")
        assert await page.value("document.querySelectorAll('img').length") == 0
        assert page.errors == []
    await page.until("document.querySelector('#notice').innerText.startsWith('Connection lost')")


async def test_the_report_of_a_run_with_failures_says_how_each_agent_ended(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    notes = ["Read this.", 'Read that. [[sim: {"fault": "400"}]]', 'Read on. [[sim: {"text": "Done."}]]']
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=64)) as sim:
        results = await BatchAgent.run(task="{it}", inputs=notes, backend=sim.url, max_tokens=9, checkpoint_dir=folder)
    assert [result.ok for result in results] == [True, False, True]
    await page.open((folder / "report.html").as_uri())
    rows = await page.value("[...document.querySelectorAll('#results tbody tr')].map(e => e.innerText)")
    expected = [
        ("answered", "Read this.", "length"),
        ("failed", "Read that.", "bad_request"),
        ("answered", "Done.", "stop"),
    ]
    for row, parts in zip(rows, expected, strict=True):
        assert all(part in row for part in parts), row
    assert "1 cut at max_tokens" in await page.text("#summary")
    await page.click("#results tbody tr:nth-child(2) .agent")
    said = await page.text("#panel")
    assert "Failed" in said
    assert "bad_request: HTTP 400" in said
    assert "running" not in said.lower()
    assert page.errors == []


COUNTS = """({
    head: [...document.querySelectorAll("#head .legend .key")].map((each) => each.innerText),
    tile: document.querySelector('#summary [data-key="Answered"]').innerText,
    failures: document.querySelector("#failures .note").innerText,
    statuses: [...document.querySelectorAll('#results [data-filter="status"] option')].map((each) => each.innerText),
    kinds: [...document.querySelectorAll('#results [data-filter="kind"] option')].map((each) => each.innerText),
    timeline: [...document.querySelectorAll("#rows-bar option")].map((each) => each.innerText),
    rows: [...document.querySelectorAll("#results td.status")].map((each) => each.innerText),
})"""
"""The numbers of agents by status in each part of the page."""


async def test_a_failed_agent_is_failed_in_every_part_of_a_page_whose_run_goes_on(page: Page, tmp_path: Path) -> None:
    gates, entered = {"first": asyncio.Event(), "last": asyncio.Event()}, asyncio.Semaphore(0)

    @Tool.define(effect="read")
    async def wait_for(gate: str) -> str:
        """Wait for a gate."""
        entered.release()
        await gates[gate].wait()
        return "open"

    def waits(gate: str, then: str) -> str:
        return f'[[sim: [{{"calls": [{{"name": "wait_for", "arguments": {{"gate": "{gate}"}}}}]}}, {then}]]]'

    notes = ["fine", waits("first", '{"fault": "400"}'), waits("last", '{"text": "Done."}')]
    rows = [{"id": f"note-{number}", "text": text} for number, text in enumerate(notes)]
    folder = tmp_path / "run"
    with SimServer(SimConfig(zero_latency=True), Script(tool_turns=0, answer_tokens=5)) as sim:
        async with AsyncExitStack() as stack:
            group = await stack.enter_async_context(asyncio.TaskGroup())
            run = group.create_task(
                BatchAgent.run(
                    task="{text}", inputs=rows, key="id", tools=[wait_for], backend=sim.url, checkpoint_dir=folder
                )
            )
            async with asyncio.timeout(HANGS):
                await entered.acquire()
                await entered.acquire()
            await page.open(await stack.enter_async_context(serve(folder)))
            await page.until("document.querySelector('#head').innerText.includes('2 in tools')")
            await page.click("#results tbody tr:nth-child(2) .agent")
            await page.until("document.querySelector('#panel .trace')?.innerText.includes('running')")
            gates["first"].set()
            await page.until("document.querySelector('#panel .badge').innerText === 'Failed'")
            trace = await page.until(
                "document.querySelector('#panel .trace').innerText.includes('\\nfailed') && "
                "document.querySelector('#panel .trace').innerText"
            )
            assert "running" not in trace
            assert "under way" not in await page.text("#panel")
            assert trace.startswith("Agent 1  key note-1\n")
            counts = await page.value(COUNTS)
            assert counts["head"] == ["1 answered", "1 failed", "1 in tools"]
            assert "1\nof 3, 1 failed" in counts["tile"]
            assert counts["failures"] == "1 of 2 finished agents"
            assert counts["statuses"] == ["all", "answered (1)", "failed (1)", "running (1)"]
            assert counts["kinds"] == ["all", "bad_request (1)"]
            assert {"answered (1)", "failed (1)", "running (1)"} <= set(counts["timeline"])
            assert sorted(counts["rows"]) == ["answered", "failed", "running"]
            gates["last"].set()
            results = await run
            await page.until("document.querySelector('#state').innerText === 'Finished'")
            counts = await page.value(COUNTS)
            assert [result.ok for result in results] == [True, False, True]
            assert counts["head"] == ["2 answered", "1 failed"]
            assert counts["failures"] == "1 of 3 finished agents"
            assert counts["statuses"] == ["all", "answered (2)", "failed (1)"]
            assert sorted(counts["rows"]) == ["answered", "answered", "failed"]
            assert page.errors == []
