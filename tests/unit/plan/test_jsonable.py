"""The same value is the same text in every process."""

import subprocess
import sys

import pytest

_SHOW = """
from pydantic import BaseModel
from batch_agent.plan.fingerprint import Keys
from batch_agent.plan.template import parse_template

class Paper(BaseModel):
    tags: set[str]

paper = Paper(tags=set("abcdefgh"))
print(Keys(b"run").key({"paper": paper}), Keys(b"run").key(paper), parse_template("{paper}").render({"paper": paper}))
"""


@pytest.mark.slow
def test_sets_in_models_are_in_the_same_order_in_every_process() -> None:
    shown = {
        subprocess.run(
            [sys.executable, "-c", _SHOW], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(shown) == 1
