"""Every link of the docs leads somewhere."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.docs.markdown import ROOT, pages

PAGES = [*pages(), ROOT / "CHANGELOG.md"]
SITE = ROOT / "docs"
_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def test_every_link_of_the_docs_has_a_target() -> None:
    assert [(page, link) for page in PAGES for link in links_of(page) if not leads_somewhere(page, link)] == []


def test_no_docs_page_links_to_a_file_outside_the_site() -> None:
    """What is not below docs/ is not on the site."""
    found = [(page, link) for page in PAGES if SITE in page.parents for link in links_of(page)]
    out = [(page.name, link) for page, link in found if SITE not in (page.parent / link).resolve().parents]
    assert out == []


def test_the_changelog_has_no_relative_links() -> None:
    """It is shown in two places, from which no link leads to the same page."""
    assert list(links_of(ROOT / "CHANGELOG.md")) == []


def test_the_navigation_lists_every_docs_page_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    names = [page.relative_to(SITE).as_posix() for page in PAGES if SITE in page.parents]
    assert sorted(places_in(nav)) == sorted(names)


def places_in(nav: Any) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case list():
            for entry in nav:
                yield from places_in(entry)
        case dict():
            yield from places_in(list(nav.values()))


def links_of(page: Path) -> Iterator[str]:
    text = _FENCE.sub("", page.read_text())
    for link in _LINK.findall(_CODE.sub("", text)):
        if "://" not in link:
            yield link


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors_of(target))


@cache
def anchors_of(page: Path) -> set[str]:
    """As GitHub and the site make them of headings."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    plain = [re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


def test_the_files_that_the_architecture_page_names_exist() -> None:
    text = (SITE / "architecture.md").read_text()
    named = re.findall(r"`([a-z_0-9/]+(?:\.py|/))`", text[: text.index("## Glossary")])
    assert len(named) > 40
    folders = [
        ROOT / "src" / "batch_agent" / folder for folder in ("", "backends", "tools", "cluster", "programs", "observe")
    ]
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []
