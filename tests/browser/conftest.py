"""A real browser for the tests of the page. They fail, and never skip, where there is none."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.browser.chromium import browser
from tests.browser.tab import Page

HERE = Path(__file__).parent
TIMEOUT = 600
"""Each wait has an end of its own; all of them together may take long on a machine that is busy with others."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def tab() -> AsyncIterator[Page]:
    async with browser() as page:
        yield page


@pytest_asyncio.fixture(loop_scope="session")
async def page(tab: Page) -> Page:
    """An empty page on a desktop, in light colours, with the pointer in its corner."""
    await tab.open("about:blank")
    await tab.emulate()
    await tab.mouse("mouseMoved", 0, 0)
    return tab


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures are left: SCREENSHOTS names a folder that stays."""
    named = os.environ.get("SCREENSHOTS")
    return Path(named) if named else tmp_path_factory.mktemp("screenshots")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(TIMEOUT))
