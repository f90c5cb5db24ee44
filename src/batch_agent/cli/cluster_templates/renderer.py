"""Renderer of job files. Values are quoted in the syntax of the file, so no value can change its structure."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal

import orjson

from ...core.errors import SpecError
from ...core.fast_dataclass import dataclass
from ...core.safe_text import public_url
from ...core.spec import BatchSpec
from ...version import __version__
from ..options.cluster import STORE

Platform = Literal["kubernetes", "kuberay", "slurm", "skypilot"]

_FILES: Mapping[Platform, str] = {
    "kubernetes": "kubernetes.yaml",
    "kuberay": "kuberay.yaml",
    "slurm": "slurm.sh",
    "skypilot": "skypilot.yaml",
}
_WITHOUT: Mapping[Platform, Mapping[str, str]] = {
    "kubernetes": {"claim": "workers need no volume"},
    "kuberay": dict.fromkeys(("backend", "max_inflight", "trust"), "set it in the batch.toml of the volume"),
    "slurm": dict.fromkeys(("image", "secret", "claim"), "it runs the batch-agent that is installed on the nodes"),
    "skypilot": {
        "secret": f"pass the variables with sky jobs launch --secret {STORE}",
        "claim": "workers need no volume",
        "grace": "a spot machine is taken without a signal to its processes",
    },
}
"""Options that a platform does not support, with the reason."""

_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII)
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_MOST = 100_000
_MOST_OF_A_NAME = 40
"""Maximum length of a job name. The limit of Kubernetes is 63 characters, and it appends suffixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """Workers to run on a cluster. Raises SpecError for a value that the platform does not accept."""

    platform: Platform
    run: str
    workers: int = 4
    image: str | None = None
    store: str | None = None
    backend: str | None = None
    max_inflight: int | None = None
    trust: Sequence[str] = ()
    cpus: int = 1
    memory_gb: int = 2
    grace: int | None = None
    secret: str | None = None
    claim: str | None = None

    def __post_init__(self) -> None:
        for name, why in _WITHOUT[self.platform].items():
            if getattr(self, name):
                raise SpecError(f"{_flag(name)} is not used on {self.platform}: {why}.")
        BatchSpec.of(
            task="none", inputs=[], store=self.store or "redis://host", run_id=self.run, max_inflight=self.max_inflight
        )
        for name in ("workers", "cpus", "memory_gb", "grace"):
            if (count := getattr(self, name)) is not None and not 1 <= count <= _MOST:
                raise SpecError(f"{_flag(name)} must be an integer from 1 to {_MOST}; got {count!r}.")
        for name in ("secret", "claim"):
            if (text := getattr(self, name)) is not None and not _DNS_NAME.fullmatch(text):
                raise SpecError(f"{_flag(name)} must consist of lower-case letters, digits and '-'; got {text!r}.")
        self._check_image()
        self._check_texts()

    def _check_image(self) -> None:
        if self.image is None and self.platform in ("kubernetes", "kuberay"):
            extra = "ray" if self.platform == "kuberay" else "redis"
            raise SpecError(f"{self.platform} needs --image: a container image with batch-agent[{extra}].")
        if self.image is not None and not _IMAGE.fullmatch(self.image):
            raise SpecError(f"--image must be the name of a container image; got {self.image!r}.")

    def _check_texts(self) -> None:
        """Rejects passwords, which would be readable in the file and in a worker's process list."""
        for name in ("store", "backend"):
            text = getattr(self, name)
            if text is not None and public_url(text) != text:
                where = f"set the whole URL in {STORE}" if name == "store" else "name a backend of a batch.toml"
                raise SpecError(
                    f"{_flag(name)} {public_url(text)} may have a password, which must not be in a file: {where}."
                )
        for text in (self.store, self.backend, *self.trust):
            if text is not None and not text.isprintable():
                raise SpecError(f"A value has characters that cannot be printed: {text!r}.")

    def worker_command(self) -> list[str]:
        """The command of each worker."""
        command = ["batch-agent", "worker", "--run", self.run]
        if self.backend is not None:
            command += ["--backend", self.backend]
        if self.max_inflight is not None:
            command += ["--max-inflight", str(self.max_inflight)]
        return [*command, "--trust", *self.trust] if self.trust else command


def render_template(job: ClusterJob) -> str:
    """The complete file for the scheduler."""
    text = (files("batch_agent.cli") / "cluster_templates" / _FILES[job.platform]).read_text(encoding="utf-8")
    values = _values(job) | _PARTS[job.platform](job)
    return "".join(_line(line, values) for line in text.splitlines(keepends=True))


def _line(line: str, values: Mapping[str, str]) -> str:
    """Fills in a line. A placeholder alone on its line stands for any number of lines, each with its indentation."""
    alone = _PLACEHOLDER.fullmatch(line.strip())
    if alone is None:
        return _PLACEHOLDER.sub(lambda found: values[found[1]], line)
    indent = line[: line.index("{")]
    return "".join(f"{indent}{each}\n" for each in values[alone[1]].splitlines())


def _values(job: ClusterJob) -> dict[str, str]:
    """Values that all platforms use and that need no quotes."""
    return {
        "version": __version__,
        "run": job.run,
        "name": _dns_name(job.run),
        "workers": str(job.workers),
        "cpus": str(job.cpus),
        "memory_gb": str(job.memory_gb),
        "grace": str(job.grace or 30),
        "image": _json(job.image or ""),
        "secret": job.secret or "batch-agent",
        "claim": job.claim or "batch-agent",
        "store_variable": "" if job.store is None else f"env:\n  - name: {STORE}\n    value: {_json(job.store)}",
    }


def _kubernetes(job: ClusterJob) -> dict[str, str]:
    # Kubernetes replaces $(NAME) in a command; $$(NAME) stands for itself.
    command = [word.replace("$", "$$") for word in job.worker_command()]
    return {
        "container_command": _json(command),
        "secret_is_optional": "false" if job.store is None else "true",
        "store_variable": _values(job)["store_variable"].replace("$", "$$"),
    }


def _kuberay(job: ClusterJob) -> dict[str, str]:
    command = ["batch-agent", "run", "--cluster", "ray", "--workers", str(job.workers)]
    name = ["--run", job.run]
    # A name needs a store. Without one, the checkpoint on the volume identifies the run.
    if job.store is not None:
        return {"entrypoint": _json(f"cd /data && {shlex.join([*command, *name])}")}
    return {"entrypoint": _json(f"cd /data && {shlex.join(command)} ${{{STORE}:+{shlex.join(name)}}}")}


def _slurm(job: ClusterJob) -> dict[str, str]:
    missing = "set it to the URL of the Redis server, in the environment of sbatch"
    store = f': "${{{STORE}:?{missing}}}"' if job.store is None else f"export {STORE}={shlex.quote(job.store)}"
    return {"store_export": store, "shell_command": shlex.join(job.worker_command())}


def _skypilot(job: ClusterJob) -> dict[str, str]:
    install = shlex.join(["pip", "install", f"batch-agent[redis]=={__version__}"])
    return {
        "launch_option": f"--secret {STORE} " if job.store is None else "",
        "image_id": "" if job.image is None else f"image_id: {_json(f'docker:{job.image}')}",
        "store_task": f"secrets:\n  {STORE}: null" if job.store is None else f"envs:\n  {STORE}: {_json(job.store)}",
        "setup": f"setup: {_json(install)}" if job.image is None else "",
        "run_script": _json(f"exec {shlex.join(job.worker_command())}"),
    }


_PARTS: Mapping[Platform, Callable[[ClusterJob], dict[str, str]]] = {
    "kubernetes": _kubernetes,
    "kuberay": _kuberay,
    "slurm": _slurm,
    "skypilot": _skypilot,
}


def _json(value: Any) -> str:
    """JSON, which is also YAML."""
    return orjson.dumps(value).decode()


def _dns_name(run: str) -> str:
    """The name of the run in a form that Kubernetes, Slurm and SkyPilot accept."""
    name = re.sub(r"[^a-z0-9]+", "-", run.lower())[:_MOST_OF_A_NAME].strip("-")
    return f"batch-agent-{name}".rstrip("-")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
