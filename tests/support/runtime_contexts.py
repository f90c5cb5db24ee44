"""What a run gives to its programs, for tests of runtimes without a run."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batch_agent.core.program_runtime import ModelEndpoint, RuntimeContext

FAKE = Path(__file__).with_name("fake_opencode.py")


class Doors:
    """Every agent has an address with a key of its own; what is to be hidden from the model is kept."""

    def __init__(self) -> None:
        self.hides: dict[str, Mapping[str, str]] = {}

    def endpoint(self, agent: str, masks: Mapping[str, str]) -> ModelEndpoint:
        self.hides[agent] = masks
        return ModelEndpoint("http://127.0.0.1:9", f"key-of-{agent}", "some/model")


def house(folder: Path, doors: Doors | None = None, window: int | None = 8_000) -> RuntimeContext:
    folder.mkdir()
    return RuntimeContext(folder.resolve(), doors or Doors(), window, lambda _: None)


def fake_opencode(folder: Path, **settings: Any) -> str:
    """A program that stands in for OpenCode; its path."""
    file = folder / "settings.json"
    file.write_text(json.dumps(settings))
    program = folder / "opencode"
    command = [sys.executable, "-S", "-E", str(FAKE), str(file)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o755)
    return str(program)
