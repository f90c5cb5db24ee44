"""An example on a real model."""

import re
from pathlib import Path

import pytest
from tests.unit.test_examples import run, write_note


@pytest.mark.nightly
def test_auto_research_makes_a_survey_on_the_embedded_model(tmp_path: Path) -> None:
    write_note(tmp_path / "corpus")
    write_note(tmp_path / "corpus", "batch.md", "A batch is computed in one step.")
    said = run("auto_research.py", "computing", "--corpus", tmp_path / "corpus", cwd=tmp_path)
    assert re.fullmatch(r"survey.md: \d+ characters from [12] agents\n", said)
    sources = re.findall(r"^- (.*)$", (tmp_path / "survey.md").read_text(), re.MULTILINE)
    known = {f"{name}: On {name}. Source: A book, 2020" for name in ("cache.md", "batch.md")}
    assert set(sources) <= known | {f"{name}: not opened: no source" for name in ("cache.md", "batch.md")}
