"""A real browser without a window. What is done in it is in `tab`."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from tests.browser.tab import HANGS, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A tab that the browser takes for unseen is drawn rarely or not at all.
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
]


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A fresh browser with one empty page. It is gone at the end, whatever happens."""
    with TemporaryDirectory(prefix="chromium", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            found(), *_FLAGS, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            address = await _address(Path(profile, "DevToolsActivePort"), process)
            async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket, await _attached(socket))
                hearing = asyncio.get_running_loop().create_task(page.listen())
                try:
                    for part in ("Page", "Runtime", "Network", "Log"):
                        await page.call(f"{part}.enable")
                    await page.call("Page.setLifecycleEventsEnabled", enabled=True)
                    await page.call("Page.bringToFront")
                    await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
                    yield page
                finally:
                    hearing.cancel()
                    await asyncio.wait([hearing])
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def found() -> str:
    """The path of a Chromium; CHROMIUM names another."""
    named = os.environ.get("CHROMIUM")
    path = named or next((path for name in NAMES if (path := shutil.which(name))), None)
    assert path, "There is no Chromium to look at pages with: bash scripts/browser/install.sh"
    return path


async def _address(port_file: Path, process: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(HANGS):
        while True:
            assert process.returncode is None, f"the browser ended at once with status {process.returncode}"
            lines = port_file.read_text().split() if port_file.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            await asyncio.sleep(0.02)


async def _attached(socket: aiohttp.ClientWebSocketResponse) -> str:
    """The session of a new tab."""

    async def ask(number: int, method: str, **arguments: Any) -> Any:
        await socket.send_json({"id": number, "method": method, "params": arguments})
        async for message in socket:
            heard = json.loads(message.data)
            if heard.get("id") == number:
                return heard["result"]
        raise ConnectionError("the browser is gone")

    async with asyncio.timeout(HANGS):
        target = await ask(-1, "Target.createTarget", url="about:blank")
        return str((await ask(-2, "Target.attachToTarget", targetId=target["targetId"], flatten=True))["sessionId"])
