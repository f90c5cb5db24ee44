"""python -m scripts.engines.install [ENGINE...]: real engines for the tests that need them, a few minutes once.

ENGINE is vllm (CPU), dynamo (mocker), sglang (CPU), lmcache (CPU), opencode, codex or claude-code (no engines:
coding agents that ask them), mlflow or phoenix (no engines: servers that traces are sent to), vllm-router, ray-serve,
object-stores (emulators of Azure's and Google's), or shellcheck (a linter). Without any: vllm, dynamo, opencode, codex
and claude-code, which `make test-engines` starts.
Parts that are ready are left alone. An interrupted install is redone; a second one, started meanwhile, waits.
"""

import fcntl
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.engines import (
    claude_code_env,
    codex_env,
    dynamo_env,
    lmcache_env,
    mlflow_env,
    model,
    object_stores_env,
    opencode_env,
    phoenix_env,
    ray_serve_env,
    replay,
    sglang_env,
    sglang_vision_model,
    shellcheck_env,
    vision_model,
    vllm_env,
    vllm_router_env,
)
from scripts.engines.layout import (
    CLAUDE_CODE,
    CODEX,
    DYNAMO,
    LMCACHE,
    MLFLOW,
    MODEL,
    OBJECT_STORES,
    OPENCODE,
    PHOENIX,
    RAY_SERVE,
    REPLAY,
    SGLANG,
    SGLANG_VISION,
    SHELLCHECK,
    VISION,
    VLLM,
    VLLM_ROUTER,
    Part,
    engines_root,
)

OLDEST, NEWEST = (3, 11), (3, 13)
# What each engine needs, in an order in which it can be made: vLLM's environment converts the model.
PARTS = {
    "vllm": (VLLM, MODEL, VISION),
    "dynamo": (VLLM, MODEL, DYNAMO, REPLAY),
    "sglang": (VLLM, MODEL, SGLANG, VISION, SGLANG_VISION),
    "lmcache": (VLLM, MODEL, LMCACHE),
    "opencode": (OPENCODE,),
    "codex": (CODEX,),
    "claude-code": (CLAUDE_CODE,),
    "mlflow": (MLFLOW,),
    "phoenix": (PHOENIX,),
    "shellcheck": (SHELLCHECK,),
    "vllm-router": (VLLM_ROUTER,),
    "object-stores": (OBJECT_STORES,),
    "ray-serve": (RAY_SERVE,),
}
BUILDERS = {
    VLLM: vllm_env.build,
    MODEL: model.build,
    VISION: vision_model.build,
    DYNAMO: dynamo_env.build,
    REPLAY: replay.build,
    SGLANG: sglang_env.build,
    SGLANG_VISION: sglang_vision_model.build,
    LMCACHE: lmcache_env.build,
    OPENCODE: opencode_env.build,
    CODEX: codex_env.build,
    CLAUDE_CODE: claude_code_env.build,
    MLFLOW: mlflow_env.build,
    PHOENIX: phoenix_env.build,
    SHELLCHECK: shellcheck_env.build,
    VLLM_ROUTER: vllm_router_env.build,
    OBJECT_STORES: object_stores_env.build,
    RAY_SERVE: ray_serve_env.build,
}
DEFAULT = ("vllm", "dynamo", "opencode", "codex", "claude-code")


def main(engines: Sequence[str]) -> None:
    if unknown := [name for name in engines if name not in PARTS]:
        raise SystemExit(f"No such engine: {', '.join(unknown)}. There are {', '.join(PARTS)}.")
    _check_python()
    root = engines_root()
    root.mkdir(parents=True, exist_ok=True)
    with _alone(root / ".lock"):
        for part in dict.fromkeys(part for name in engines for part in PARTS[name]):
            _make(part, BUILDERS[part])


def _check_python() -> None:
    if OLDEST <= sys.version_info[:2] <= NEWEST and sys.platform == "linux":
        return
    have = f"Python {sys.version_info.major}.{sys.version_info.minor} on {sys.platform}"
    raise SystemExit(
        "The engines have wheels for Linux (x86_64, aarch64) and Python 3.11 to 3.13 only; this is "
        f"{have}. Use such a Python: make test-engines VENV=.venv312 PYTHON=python3.12"
    )


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another install in {lock.parent}", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(part: Part, build: Callable[[Path], None]) -> None:
    if part.is_ready():
        print(f"{part.name}: ready in {part.folder}", flush=True)
        return
    print(f"{part.name}: installing into {part.folder}", flush=True)
    began = time.monotonic()
    shutil.rmtree(part.folder, ignore_errors=True)
    part.folder.mkdir(parents=True)
    build(part.folder)
    part.mark_ready()
    print(f"{part.name}: installed in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or DEFAULT)
