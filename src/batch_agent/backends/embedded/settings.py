"""Settings of the embedded model from the environment, with defaults that measured best."""

import os
import sys
from pathlib import Path
from typing import Self

from ...core.fast_dataclass import dataclass
from .model_cache import EmbeddedModelError

DEFAULT_SLOTS = 4
DEFAULT_CONTEXT_TOKENS = 3072  # a prompt of 2,000 tokens and a long answer
MAX_THREADS = 8  # a model this small gains nothing from more


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """`context_tokens` is per slot; `log` is None when llama.cpp stays silent."""

    slots: int
    context_tokens: int
    threads: int
    log: Path | None

    @classmethod
    def from_environment(cls, slots: int | None) -> Self:
        """Raises EmbeddedModelError when a variable does not hold a positive number."""
        log = os.environ.get("BATCH_AGENT_LOCAL_LOG")
        return cls(
            slots=slots or DEFAULT_SLOTS,
            context_tokens=_positive("BATCH_AGENT_LOCAL_CONTEXT") or DEFAULT_CONTEXT_TOKENS,
            threads=_positive("BATCH_AGENT_LOCAL_THREADS") or default_threads(usable_cores()),
            log=Path(log).expanduser() if log else None,
        )


def default_threads(cores: int) -> int:
    """All cores but one, which is left to the agents: llama.cpp's threads spin while they wait, so one thread too many
    slows all of them."""
    return min(MAX_THREADS, max(1, cores - 1))


def usable_cores() -> int:
    """The cores this process may use, under its affinity mask and its container's CPU quota."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def _positive(variable: str) -> int | None:
    text = os.environ.get(variable)
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise EmbeddedModelError(f"{variable} is {text!r}: set it to an integer >= 1.")
    return int(text)
