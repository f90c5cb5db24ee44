"""What SGLang needs beyond its stand-ins for a model with images: the real torchvision, and the names of all operators.

Its processors of images import models that look up operators of sgl_kernel, and are left out if one is missing. The
operators have no implementation, so calling one raises. Runs in SGLang's environment, in each of its processes.
"""

import importlib.util
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

_OPERATOR = re.compile(r"torch\.ops\.sgl_kernel\.(\w+)")


def _define_all(define_used: Callable[[], Any]) -> Any:
    library = define_used()
    found = importlib.util.find_spec("sglang")
    assert found is not None
    assert found.origin is not None
    sources = [
        file for part in ("layers", "models") for file in (Path(found.origin).parent / "srt" / part).rglob("*.py")
    ]
    names = {name for file in sources for name in _OPERATOR.findall(file.read_text(errors="replace"))}
    for name in sorted(names - {"init_cpu_threads_env", "initialize"}):
        library.define(f"{name}(Tensor absent) -> Tensor")
    return library


if importlib.util.find_spec("sglang_stand_ins") is not None:  # not in the process that starts SGLang
    import sglang_stand_ins  # type: ignore[import-not-found, unused-ignore]

    sglang_stand_ins.STOOD_IN_FOR = ("sgl_kernel",)
    sglang_stand_ins._define_operators = partial(_define_all, sglang_stand_ins._define_operators)
