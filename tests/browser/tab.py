"""One tab of a real browser, over its DevTools protocol."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE = 30
"""How long a condition is waited for: a machine may be slow, and its browser with it."""

HANGS = 2 * PATIENCE
"""After how long a browser that does not answer is taken for one that never will."""

_CODES = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}

_UNTIL = """new Promise((done) => {
    const end = performance.now() + %d;
    const look = () => {
        let found = null;
        let last = null;
        try { found = last = (%s); } catch (error) { last = String(error); }
        if (found) done({ found: found instanceof Node ? true : found });
        else if (performance.now() > end) done({ last });
        else setTimeout(look, 10);
    };
    look();
})"""


class Page:
    """One tab. Remembers what it asked of the network and what went wrong in it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket = socket
        self._session = session
        self._asked = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded: set[str] = set()
        self._loading = asyncio.Event()
        self._width = 0
        self.requests: list[str] = []
        self.errors: list[str] = []

    async def call(self, method: str, **arguments: Any) -> Any:
        self._asked += 1
        number = self._asked
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "sessionId": self._session, "method": method, "params": arguments})
        try:
            async with asyncio.timeout(HANGS):
                return await answer
        finally:
            del self._answers[number]

    async def open(self, url: str) -> None:
        """Until it is loaded and drawn in the size that was asked for."""
        self.requests.clear()
        self.errors.clear()
        loader = (await self.call("Page.navigate", url=url))["loaderId"]
        async with asyncio.timeout(HANGS):
            while loader not in self._loaded:
                self._loading.clear()
                await self._loading.wait()
        await self._sized()

    async def value(self, script: str) -> Any:
        """What an expression comes to; a promise is waited for."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str) -> Any:
        """What an expression comes to once it is true, for which it is asked again and again."""
        answer = await self.value(_UNTIL % (PATIENCE * 1000, script))
        assert "found" in answer, f"{script} is still {answer.get('last')!r} after {PATIENCE} s"
        return answer["found"]

    async def frame(self) -> None:
        """Until what was asked for is drawn."""
        await self.value(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
        )

    async def text(self, selector: str) -> str:
        """What a reader sees of an element."""
        return str(await self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def emulate(self, width: int = 1280, height: int = 900, scheme: str = "light", touch: bool = False) -> None:
        self._width = width
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        await self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        await self._sized()

    async def _sized(self) -> None:
        """Until the page has the width that was asked for, and has drawn itself anew for it. An empty page has none."""
        await self.until(f"location.protocol === 'about:' || document.documentElement.clientWidth === {self._width}")
        await self.frame()

    async def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height in the window, to which the element is scrolled, once it has come to rest."""
        found = f"document.querySelector({json.dumps(selector)})"
        await self.until(found)
        await self.value(f"{found}.scrollIntoView({{ block: 'center' }})")
        async with asyncio.timeout(PATIENCE):
            before = None
            while before != (box := await self.value(f"{found}.getBoundingClientRect().toJSON()")):
                before = box
                await self.frame()  # scrolling hides what hovers
        return box["x"], box["y"], box["width"], box["height"]

    async def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    async def point(self, selector: str, x: float = 0.5, y: float = 0.5) -> tuple[float, float]:
        """Moves the mouse over a place in an element, said in parts of its width and height."""
        left, top, width, height = await self.box(selector)
        await self.mouse("mouseMoved", left + x * width, top + y * height)
        await self.frame()
        return left + x * width, top + y * height

    async def click(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        at = await self.point(selector, x, y)
        for kind in ("mousePressed", "mouseReleased"):
            await self.mouse(kind, *at, button="left", clickCount=1)
        await self.frame()

    async def drag(self, selector: str, start: float, end: float, y: float = 0.5) -> None:
        """With the left button held, from one part of an element's width to another."""
        left, top, width, height = await self.box(selector)
        x, at = left + start * width, top + y * height
        await self.mouse("mouseMoved", x, at)
        await self.mouse("mousePressed", x, at, button="left", clickCount=1)
        for part in (0.5, 1.0):
            await self.mouse("mouseMoved", x + (end - start) * width * part, at, button="left", buttons=1)
        await self.mouse("mouseReleased", x + (end - start) * width, at, button="left", clickCount=1)
        await self.frame()

    async def choose(self, selector: str, value: str) -> None:
        """An option of a select."""
        found = f"document.querySelector({json.dumps(selector)})"
        await self.value(f"{found}.value = {json.dumps(value)}")
        await self.value(f"{found}.dispatchEvent(new Event('change', {{ bubbles: true }}))")

    async def press(self, *keys: str) -> None:
        for key in keys:
            said = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            await self.call(
                "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=_CODES.get(key, 0), **said
            )
            await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=_CODES.get(key, 0))
        await self.frame()

    async def screenshot(self, path: Path, whole: bool = False) -> bytes:
        """Of the window, or of all there is to scroll to."""
        shot = base64.b64decode(
            (
                await self.call(
                    "Page.captureScreenshot", captureBeyondViewport=whole, **(await self._clip() if whole else {})
                )
            )["data"]
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(shot)
        return shot

    async def _clip(self) -> dict[str, Any]:
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    async def listen(self) -> None:
        """Hears the browser until it is gone."""
        async for message in self._socket:
            heard = json.loads(message.data)
            if "id" in heard:
                self._answered(heard)
            else:
                self._happened(heard.get("method"), heard.get("params", {}))

    def _answered(self, heard: dict[str, Any]) -> None:
        answer = self._answers.get(heard["id"])
        if answer is None or answer.done():
            return
        if "error" in heard:
            answer.set_exception(RuntimeError(f"the browser refused: {heard['error']}"))
        else:
            answer.set_result(heard["result"])

    def _happened(self, what: str | None, how: dict[str, Any]) -> None:
        match what:
            case "Page.lifecycleEvent" if how["name"] == "load":
                self._loaded.add(how["loaderId"])
                self._loading.set()
            case "Network.requestWillBeSent":
                self.requests.append(how["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(how["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled" if how["type"] in ("error", "assert", "warning"):
                self.errors.append(json.dumps(how["args"])[:2000])
            case "Log.entryAdded" if how["entry"]["level"] in ("error", "warning"):
                self.errors.append(f"{how['entry']['text']} {how['entry'].get('url', '')}")
