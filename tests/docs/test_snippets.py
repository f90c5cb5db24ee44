"""Every snippet of the docs runs."""

from pathlib import Path

import pytest
from tests.docs.markdown import ROOT, Block, blocks_of, pages
from tests.docs.page_runner import RUN, SHOWN, Reading
from tests.docs.page_setup import NEEDS, NOTHING
from tests.support.forked_programs import Call

MOST_NOT_RUN = 19
BLOCKS = {page.relative_to(ROOT).as_posix(): list(blocks_of(page.read_text())) for page in pages()}
PAGES = [name for name, blocks in BLOCKS.items() if any(block.language in RUN for block in blocks)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_what_it_says(
    name: str, tmp_path: Path, call: Call, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with Reading(ROOT / name, NEEDS.get(name, NOTHING), tmp_path, call, addresses) as reading:
        reading.follow()


def test_every_block_says_what_it_is_in() -> None:
    known = {*RUN, *SHOWN}
    assert [_place(name, block) for name, block in _all() if block.language not in known] == []


def test_what_is_not_run_is_little() -> None:
    skipped = [f"{_place(name, block)}: {block.not_run}" for name, block in _all() if block.not_run]
    assert len(skipped) <= MOST_NOT_RUN, "\n".join(skipped)


def test_no_page_that_is_gone_has_needs() -> None:
    assert set(NEEDS) <= set(BLOCKS)


def _all() -> list[tuple[str, Block]]:
    return [(name, block) for name, blocks in BLOCKS.items() for block in blocks]


def _place(name: str, block: Block) -> str:
    return f"{name}:{block.line}"
