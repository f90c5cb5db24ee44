"""Lazy imports: names of a package that are imported on first access.

    with lazy_imports(globals()):
        from .api import BatchAgent as BatchAgent

Type checkers, editors and packagers see ordinary imports. At run time the block imports nothing: it records the names,
and gives the package a `__getattr__` that imports each on first access. `etils.epy.lazy_api_imports` works the same
way.
"""

import builtins
from _thread import allocate_lock  # without importing `threading`
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

_lock = allocate_lock()
"""Guards `builtins.__import__`, which is shared by all threads."""


class lazy_imports:
    """Context manager for the `from .module import name as name` statements of the package with these `globals()`.

    The block follows the eager imports, and gives the package `__getattr__`, `__dir__` and `__all__`. A name
    that is also the name of a module of the package must be imported eagerly: otherwise the attribute would be the
    module."""

    def __init__(self, package: dict[str, Any]) -> None:
        self._package = package
        self._modules: dict[str, str] = {}
        """Module of each lazy name."""

    def __enter__(self) -> None:
        _lock.acquire()
        self._import = builtins.__import__
        builtins.__import__ = self._record_import

    def __exit__(self, *_: object) -> None:
        builtins.__import__ = self._import
        _lock.release()
        for name in self._modules:
            self._package.pop(name, None)
        self._package["__getattr__"] = self._import_name
        self._package["__dir__"] = self._names
        self._package["__all__"] = sorted(filter(self._is_public, self._names()))

    def _record_import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if globals is not self._package:  # an import in another thread
            return self._import(name, globals, locals, fromlist, level)
        self._modules.update(dict.fromkeys(fromlist or (), "." * level + name))
        return _Placeholder(name)

    def _import_name(self, name: str) -> Any:
        package = self._package["__name__"]
        if name not in self._modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = self._package[name] = getattr(import_module(self._modules[name], package), name)
        return value

    def _names(self) -> list[str]:
        return sorted({*self._package, *self._modules})

    def _is_public(self, name: str) -> bool:
        value = self._package.get(name)
        return not name.startswith("_") and value is not lazy_imports and not isinstance(value, ModuleType)


class _Placeholder(ModuleType):
    """Stand-in for a module while its names are recorded."""

    def __getattr__(self, name: str) -> None:
        return None
