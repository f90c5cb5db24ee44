"""Runtime contexts for tests of runtimes without a run."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batch_agent.core.program_runtime import ModelEndpoint, RuntimeContext

FAKE_OPENCODE = Path(__file__).with_name("fake_opencode.py")


class FakeModelAccess:
    """Model access with one key per agent, which records the masks of each agent."""

    def __init__(self) -> None:
        self.masks_by_agent: dict[str, Mapping[str, str]] = {}

    def endpoint(self, agent: str, masks: Mapping[str, str]) -> ModelEndpoint:
        self.masks_by_agent[agent] = masks
        return ModelEndpoint("http://127.0.0.1:9", f"key-of-{agent}", "some/model")


def runtime_context(
    folder: Path, model_access: FakeModelAccess | None = None, window: int | None = 8_000
) -> RuntimeContext:
    folder.mkdir()
    return RuntimeContext(folder.resolve(), model_access or FakeModelAccess(), window, lambda _: None)


def fake_opencode(folder: Path, **settings: Any) -> str:
    """Path of a program that replaces OpenCode."""
    file = folder / "settings.json"
    file.write_text(json.dumps(settings))
    program = folder / "opencode"
    command = [sys.executable, "-S", "-E", str(FAKE_OPENCODE), str(file)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o755)
    return str(program)
