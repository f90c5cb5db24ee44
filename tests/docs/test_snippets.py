"""Every snippet of the docs runs."""

from pathlib import Path

import pytest
from tests.docs.markdown import ROOT, Block, blocks_of, pages
from tests.docs.page_runner import RUN, SHOWN, Reading
from tests.docs.page_setup import NEEDS, NOTHING
from tests.support.forked_programs import Call

MOST_NOT_RUN = 29
BLOCKS = {page.relative_to(ROOT).as_posix(): list(blocks_of(page.read_text())) for page in pages()}
PAGES = [name for name, blocks in BLOCKS.items() if any(block.language in RUN for block in blocks)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_snippets_of_a_docs_page_run_as_shown(
    name: str, tmp_path: Path, call: Call, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with Reading(ROOT / name, NEEDS.get(name, NOTHING), tmp_path, call, addresses) as reading:
        reading.follow()


def test_every_code_block_names_its_language() -> None:
    known = {*RUN, *SHOWN}
    assert [_place(name, block) for name, block in _all() if block.language not in known] == []


def test_few_code_blocks_are_excluded_from_running() -> None:
    skipped = [f"{_place(name, block)}: {block.not_run}" for name, block in _all() if block.not_run]
    assert len(skipped) <= MOST_NOT_RUN, "\n".join(skipped)


def test_no_missing_docs_page_has_fixtures() -> None:
    assert set(NEEDS) <= set(BLOCKS)


def _all() -> list[tuple[str, Block]]:
    return [(name, block) for name, blocks in BLOCKS.items() for block in blocks]


def _place(name: str, block: Block) -> str:
    return f"{name}:{block.line}"
