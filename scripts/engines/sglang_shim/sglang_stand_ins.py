"""Stand-ins for two packages that SGLang imports when it loads, and that a text model on CPU does not call.

sgl_kernel has CUDA builds only, and torchvision's public wheels do not load beside a CPU build of torch. Whatever is
asked of them is there and raises when it is called, so that nothing is ever computed wrongly. Runs in SGLang's
environment, in each of its processes.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

STOOD_IN_FOR = ("sgl_kernel", "torchvision")


class Absent:
    """Something of an absent package: it can be imported, named and looked into, not called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> "Absent":
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Absent(f"{self._name}.{attribute}")

    def __call__(self, *_: object, **__: object) -> Any:
        raise NotImplementedError(f"{self._name} is not installed: scripts/engines has a stand-in for it only")


class AbsentModule(types.ModuleType):
    __version__ = "0"  # transformers compares torchvision's

    def __getattr__(self, attribute: str) -> Absent:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Absent(f"{self.__name__}.{attribute}")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in STOOD_IN_FOR:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "sgl_kernel":
            module.operators = _define_operators()  # type: ignore[attr-defined]


def _define_operators() -> Any:
    """The two operators that SGLang calls on CPU whatever the model: they bind threads and join ranks; one rank needs
    neither. They last as long as the library that is returned."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    library = torch.library.Library("sgl_kernel", "DEF")
    library.define("init_cpu_threads_env(str cpu_ids) -> str")
    library.impl("init_cpu_threads_env", lambda _: "threads are not bound", "CompositeExplicitAutograd")
    library.define("initialize(int size, int rank) -> ()")
    library.impl("initialize", lambda _size, _rank: None, "CompositeExplicitAutograd")
    return library


sys.meta_path.insert(0, StandIns())
