import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from batch_agent.backends.embedded import EmbeddedModelError
from batch_agent.backends.embedded.dequantise import dequantise, fastest_weights


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """A model with every kind of metadata and a tensor of each kind the default model has."""
    path = tmp_path / "Tiny.Q8_0.gguf"
    writer: Any = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(7)
    writer.add_token_list(["<s>", "Ġcafé", "\n"])
    writer.add_token_types([3, 1, 1])
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")
    writer.add_float32("llama.rope.freq_base", 100000.0)
    values = np.random.default_rng(7).normal(size=(5000, 64)).astype(np.float32)
    packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", np.arange(7, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def aarch64_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATCH_AGENT_LOCAL_WEIGHTS", raising=False)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")


def test_metadata_is_copied_and_only_the_file_type_changes(quantised: Path, tmp_path: Path) -> None:
    dequantise(quantised, tmp_path / "copy.gguf")
    before, after = _metadata(quantised), _metadata(tmp_path / "copy.gguf")
    assert before.pop("general.file_type") == 7
    assert after.pop("general.file_type") == 0
    assert after == before


def test_every_tensor_holds_the_same_numbers(quantised: Path, tmp_path: Path) -> None:
    dequantise(quantised, tmp_path / "copy.gguf")
    before, after = gguf.GGUFReader(quantised).tensors, gguf.GGUFReader(tmp_path / "copy.gguf").tensors
    assert [tensor.name for tensor in after] == [tensor.name for tensor in before]
    for old, new in zip(before, after, strict=True):
        assert new.tensor_type.name == "F32"
        assert (new.data == gguf.dequantize(old.data, old.tensor_type)).all()


@pytest.mark.usefixtures("aarch64_linux")
def test_the_copy_is_made_once_and_used_again(quantised: Path, cache: Path) -> None:
    story: list[str] = []
    first = fastest_weights(quantised, story.append)
    assert first == cache / "Tiny.F32.gguf"
    made = first.stat().st_mtime_ns
    assert fastest_weights(quantised, story.append) == first
    assert first.stat().st_mtime_ns == made
    assert len(story) == 1
    first.write_bytes(b"GGUF, but of somebody else")
    assert fastest_weights(quantised, story.append) == first
    assert first.read_bytes() != b"GGUF, but of somebody else"
    assert len(story) == 2


@pytest.mark.usefixtures("aarch64_linux", "cache")
def test_without_the_gguf_package_the_quantised_file_is_used(quantised: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert fastest_weights(quantised, _nothing) == quantised


@pytest.mark.usefixtures("aarch64_linux")
def test_without_room_for_the_copy_the_quantised_file_is_used(quantised: Path, cache: Path) -> None:
    cache.write_text("in the way")
    story: list[str] = []
    assert fastest_weights(quantised, story.append) == quantised
    assert "using the quantised weights" in story[-1]


@pytest.mark.parametrize(
    ("system", "machine", "override", "made"),
    [
        ("Linux", "aarch64", "", True),
        ("Linux", "aarch64", "quantized", False),
        ("Linux", "x86_64", "", False),
        ("Linux", "x86_64", "f32", True),
        ("Darwin", "arm64", "", False),
    ],
)
def test_f32_is_for_linux_on_arm_unless_the_user_says_otherwise(
    system: str, machine: str, override: str, made: bool, quantised: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setenv("BATCH_AGENT_LOCAL_WEIGHTS", override)
    assert (fastest_weights(quantised, lambda message: None) != quantised) is made


def test_an_unknown_override_is_refused(quantised: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_AGENT_LOCAL_WEIGHTS", "fast")
    with pytest.raises(EmbeddedModelError, match="'fast': set it to 'quantized' or 'f32'"):
        fastest_weights(quantised, _nothing)


def _metadata(path: Path) -> dict[str, object]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def _nothing(message: str) -> None:
    raise AssertionError(message)
