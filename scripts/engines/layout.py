"""Where the real engines are kept, outside the repository, and whether each part of them is ready."""

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).resolve().parent
MODEL_NAME = "smollm2"


def engines_root() -> Path:
    """The folder of everything installed: BATCH_AGENT_ENGINES, else the user's cache folder."""
    if chosen := os.environ.get("BATCH_AGENT_ENGINES"):
        return Path(chosen).expanduser().resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).expanduser().resolve() / "batch-agent" / "engines"


@dataclass(frozen=True, slots=True)
class Part:
    """One installed thing: a folder, and the files beside this module that say how it is made.

    The stamp is written last and holds a digest of the recipe, so a half-made part and a part of an older recipe are
    both made again.
    """

    name: str
    recipe: tuple[str, ...]
    interpreter: str | None = None

    @property
    def folder(self) -> Path:
        return engines_root() / self.name

    @property
    def python(self) -> Path:
        """The part's own interpreter; only for a part that is a virtual environment."""
        assert self.interpreter is not None, self.name
        return self.folder / self.interpreter

    def is_ready(self) -> bool:
        # A virtual environment whose base interpreter was removed has a dangling link and a valid stamp.
        interpreter_is_there = self.interpreter is None or self.python.exists()
        return interpreter_is_there and self._stamp.is_file() and self._stamp.read_text() == self._digest()

    def mark_ready(self) -> None:
        self._stamp.write_text(self._digest())

    @property
    def _stamp(self) -> Path:
        return self.folder / ".ready"

    def _digest(self) -> str:
        digest = hashlib.sha256(b"%d.%d" % sys.version_info[:2] if self.interpreter else b"")
        for name in self.recipe:
            digest.update((RECIPES / name).read_bytes())
        return digest.hexdigest()


VLLM = Part("vllm", ("vllm_env.py", "vllm-constraints.txt"), "bin/python")
# SGLang's environment adds to vLLM's, so another vLLM means another SGLang.
SGLANG_RECIPE = ("sglang_env.py", "sglang-constraints.txt", "sglang_shim/sglang_stand_ins.py")
SGLANG = Part("sglang", (*SGLANG_RECIPE, *VLLM.recipe), "bin/python")
LMCACHE = Part("lmcache", ("lmcache_env.py", "lmcache-constraints.txt", *VLLM.recipe), "bin/python")
DYNAMO = Part("dynamo", ("dynamo_env.py", "dynamo-constraints.txt"), "bin/python")
MODEL = Part("smollm2", ("model.py", "smollm2_to_hf.py", "tools_chat_template.jinja"))
VISION = Part("tiny-llava", ("vision_model.py", "tiny_llava.py", *VLLM.recipe, *MODEL.recipe))
VISION_PACKAGES = "packages"
"""Folder of that part with what vLLM's environment lacks for images."""
SGLANG_VISION = Part("tiny-qwen-vl", ("sglang_vision_model.py", "tiny_qwen_vl.py", *VISION.recipe))
REPLAY = Part("replay", ("replay.py", "write_replay.py"))
OPENCODE = Part("opencode", ("opencode_env.py",))
CODEX = Part("codex", ("codex_env.py",))
CLAUDE_CODE = Part("claude-code", ("claude_code_env.py",))
MLFLOW = Part("mlflow", ("mlflow_env.py", "mlflow-constraints.txt"), "bin/python")
PHOENIX = Part("phoenix", ("phoenix_env.py", "phoenix-constraints.txt"), "bin/python")
VLLM_ROUTER = Part("vllm-router", ("vllm_router_env.py",), "bin/python")
OBJECT_STORES = Part("object-stores", ("object_stores_env.py",), "bin/python")
RAY_SERVE = Part("ray-serve", ("ray_serve_env.py",), "bin/python")
SHELLCHECK = Part("shellcheck", ("shellcheck_env.py",))
