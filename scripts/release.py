"""Checks what a release ships: `python -m scripts.release [--extras all|none|NAME,...] [--out dist]`.

Builds wheel and sdist of both packages, checks their metadata and contents, installs the wheel into a clean environment
of every Python from 3.11 on that this machine has, imports it with warnings as errors, installs each extra alone, and
writes the bill of materials (CycloneDX) of an installation, the weights of the embedded model included.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batch_agent.backends.embedded.weights import WEIGHTS_FILE, WEIGHTS_REQUIREMENT, WEIGHTS_SHA256

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (ROOT, ROOT / "packages" / "batch-agent-vllm")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
NOT_FOR_USERS = {"check", "dev", "docs"}
SMOKE = """
import platform
import tempfile

import batch_agent
from batch_agent import BatchAgent, Tool
from batch_agent.sim.process import SimServer
from batch_agent.sim.sim_config import Script, SimConfig


@Tool.define(effect="read")
def look_up(name: str) -> str:
    "Looks a name up."
    return name


with SimServer(SimConfig(zero_latency=True), Script(tool_turns=1)) as server, tempfile.TemporaryDirectory() as folder:
    options = dict(inputs=list("abcdefgh"), task="Label {input}", backend=server.url, tools=[look_up], progress=False)
    results = BatchAgent.run_sync(**options, checkpoint_dir=folder)
assert [result.ok for result in results] == [True] * 8, results.errors
print(f"Python {platform.python_version()}: {batch_agent.__version__} runs a batch without a warning")
"""
USES = {
    "local": "import gguf, xllamacpp, batch_agent.backends.embedded.weights",
    "bedrock": "import botocore.session, batch_agent.backends.bedrock",
    "web": "import trafilatura",
    "search": "import ddgs",
    "sql": "import sqlalchemy",
    "python": "import pydantic_monty",
    "mcp": "import mcp",
    "cost": "import genai_prices",
    "speed": "import uvloop",
    "data": "import duckdb, narwhals",
    "yaml": "import yaml",
    "pdf": "import pypdf, batch_agent.media.pdf",
    "images": "import PIL.Image, pypdfium2, batch_agent.media.pdf",
    "metrics": "import prometheus_client; from batch_agent import Metrics",
    "redis": "import redis.asyncio",
    "s3": "import s3fs, batch_agent.objects.store_client",
    "gcs": "import gcsfs, batch_agent.objects.store_client",
    "azure": "import adlfs, batch_agent.objects.store_client",
    "ray": "import ray",
    "otel": "import opentelemetry.trace; from batch_agent import Traces",
}


class Failure(Exception):
    """What is wrong with the release."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Checks what a release ships.")
    parser.add_argument("--extras", default="all", help="all, none, or names with commas between them")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where wheels, sdists and the SBOM go")
    options = parser.parse_args(arguments)
    names = _extras(options.extras)
    try:
        wheel = _built(options.out)
        for python in _interpreters():
            with _environment(python, str(wheel)) as environment:
                print(_output(environment, "-W", "error", "-c", SMOKE), flush=True)
        for name in names:
            with _environment(sys.executable, f"{wheel}[{name}]") as environment:
                _output(environment, "-c", USES[name])
                print(f"[{name}] alone works", flush=True)
        print(f"bill of materials: {_bill_of_materials(wheel, options.out)}")
    except Failure as error:
        raise SystemExit(str(error)) from error


def _extras(asked: str) -> list[str]:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    names = sorted(known - NOT_FOR_USERS) if asked == "all" else [] if asked == "none" else asked.split(",")
    if missing := [name for name in names if name not in USES]:
        raise SystemExit(f"scripts/release.py does not say what the extra {missing[0]!r} is used for: add it to USES.")
    return names


def _built(out: Path) -> Path:
    """Builds both packages and checks them. Returns the wheel of batch-agent."""
    shutil.rmtree(out, ignore_errors=True)
    for package in PACKAGES:
        _run(_uv(), "build", "-q", "--out-dir", str(out), str(package))
    made = sorted(path for path in out.iterdir() if path.suffix in (".whl", ".gz"))
    _run(_uv(), "tool", "run", "-q", "twine", "check", "--strict", *map(str, made))
    for path in made:
        _check_contents(path)
        print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)
    [wheel] = out.glob("batch_agent-*.whl")
    return wheel


def _check_contents(path: Path) -> None:
    needed, unwanted = ["py.typed", "LICENSE"], [".venv/", "site/", "dist/"]
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
        unwanted += ["tests/", "benchmarks/", "scripts/"]
    else:
        with tarfile.open(path) as sdist:
            names = [name.partition("/")[2] for name in sdist.getnames()]
        needed += ["pyproject.toml"]
    for name in needed:
        if not any(found.endswith(name) for found in names):
            raise Failure(f"{path.name} has no {name}.")
    for name in unwanted:
        if any(found.startswith(name) for found in names):
            raise Failure(f"{path.name} has {name}, which is not for users.")


def _interpreters() -> Iterator[str]:
    for version in PYTHONS:
        found = next((path for path in _candidates(version) if _starts(path)), None)
        if found is not None:
            yield found
        else:
            print(f"Python {version}: not on this machine, not checked", flush=True)


def _candidates(version: str) -> Iterator[str]:
    """Of the path, then of pyenv, whose commands on the path start only the version that is selected."""
    if path := shutil.which(f"python{version}"):
        yield path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, pyenv.glob(f"versions/{version}.*/bin/python"))


def _starts(python: str) -> bool:
    return not subprocess.run([python, "-c", ""], capture_output=True, timeout=60, check=False).returncode


@contextmanager
def _environment(python: str, *requirements: str) -> Iterator[Path]:
    """Python of a clean environment with what is required."""
    with tempfile.TemporaryDirectory() as folder:
        _run(_uv(), "venv", "-q", "--python", python, folder)
        environment = Path(folder) / "bin" / "python"
        _run(_uv(), "pip", "install", "-q", "--python", str(environment), *requirements)
        yield environment


def _bill_of_materials(wheel: Path, out: Path) -> Path:
    """Writes the SBOM of the package with its embedded model."""
    path = out / f"{wheel.name.rpartition('-py3')[0]}.cdx.json"
    with _environment(sys.executable, f"{wheel}[local]") as environment:
        _run(
            _uv(),
            "tool",
            "run",
            "-q",
            "--from",
            "cyclonedx-bom",
            "cyclonedx-py",
            "environment",
            str(environment),
            "-o",
            str(path),
        )
    materials = json.loads(path.read_text())
    materials["components"].append(_weights())
    path.write_text(json.dumps(materials, indent=1))
    return path


def _weights() -> dict[str, Any]:
    """Weights that `local://` fetches on first use. They are not in the wheel."""
    return {
        "type": "machine-learning-model",
        "name": "SmolLM2-135M-Instruct",
        "description": f"{WEIGHTS_FILE} of the wheel {WEIGHTS_REQUIREMENT}, fetched on the first use of local://",
        "supplier": {"name": "Hugging Face"},
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "hashes": [{"alg": "SHA-256", "content": WEIGHTS_SHA256}],
        "scope": "optional",
    }


def _uv() -> str:
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise Failure("uv is missing: pip install uv")
    return found


def _output(python: Path, *arguments: str) -> str:
    return _run(str(python), *arguments).strip()


def _run(*command: str) -> str:
    index = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if "PIP_INDEX_URL" in os.environ else {}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tempfile.gettempdir(),
        env=os.environ | index,
    )
    if done.returncode:
        raise Failure(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3_000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
