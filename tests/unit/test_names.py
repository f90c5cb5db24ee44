"""The names that people import."""

import subprocess
import sys

import pytest

import batch_agent


@pytest.mark.parametrize("name", batch_agent.__all__)
def test_a_public_name_is_there(name: str) -> None:
    assert getattr(batch_agent, name).__name__ == name
    assert name in dir(batch_agent)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        getattr(batch_agent, "Nothing")  # noqa: B009 - mypy knows that it is not there


def test_importing_the_package_brings_nothing_that_takes_time() -> None:
    code = "import sys, batch_agent; print([m for m in ('aiohttp', 'pydantic', 'rich', 'asyncio') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == "[]"
