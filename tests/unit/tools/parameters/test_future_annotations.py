"""Hints that are only text, as `from __future__ import annotations` makes them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from batch_agent import SpecError, Tool
from batch_agent.tools import as_tool


class Place(BaseModel):
    town: str


def test_a_type_of_the_module_is_found() -> None:
    @Tool.define
    def look(place: Place, n: int | None = None) -> str:
        return place.town

    assert look.arguments.read('{"place": {"town": "Ulm"}}') == {"place": Place(town="Ulm"), "n": None}


def test_a_type_that_is_local_to_a_function_is_found_by_the_decorator() -> None:
    @dataclass
    class Local:
        town: str

    @Tool.define
    def look(place: Local) -> str:
        return place.town

    @Tool.define(name="other")
    def look_again(place: list[Local]) -> str:
        return ""

    assert look.arguments.read('{"place": {"town": "Ulm"}}') == {"place": Local("Ulm")}
    assert look_again.name == "other"
    assert look_again.arguments.read('{"place": [{"town": "Ulm"}]}') == {"place": [Local("Ulm")]}


def test_a_plain_function_with_a_local_type_says_what_is_missing() -> None:
    @dataclass
    class Local:
        town: str

    def look(place: Local) -> str:
        return place.town

    with pytest.raises(SpecError, match="'Local' is not defined"):
        as_tool(look)
