"""Lazy imports: what a run may not need is imported when it is first used.

The names of a package:

    with lazy_imports(globals()):
        from .api import BatchAgent as BatchAgent

The modules that a module uses only sometimes:

    with lazy_modules(globals()):
        from ..run import fallback

    ... fallback.FallbackRuns(...)

Type checkers, editors and packagers see ordinary imports. At run time such a block imports nothing: it records the
names. A package gets a `__getattr__` that imports each on first access (`etils.epy.lazy_api_imports` works the same
way); a module gets a stand-in for each module, which is replaced by the module when its first attribute is used.
"""

import builtins
from _thread import allocate_lock  # without importing `threading`
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

_lock = allocate_lock()
"""Guards `builtins.__import__`, which is shared by all threads."""


class _RecordedImports:
    """Calls `record` for each `from module import names` of the module with these `globals()`, instead of importing."""

    def __init__(self, namespace: dict[str, Any], record: Callable[[str, Sequence[str]], "_Placeholder"]) -> None:
        self._namespace = namespace
        self._record = record

    def begin(self) -> None:
        _lock.acquire()
        self._import = builtins.__import__
        builtins.__import__ = self._record_import

    def end(self) -> None:
        builtins.__import__ = self._import
        _lock.release()

    def _record_import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if globals is not self._namespace:  # an import in another thread
            return self._import(name, globals, locals, fromlist, level)
        return self._record("." * level + name, fromlist or ())


class lazy_imports:
    """Context manager for the `from .module import name as name` statements of the package with these `globals()`.

    The block follows the eager imports, and gives the package `__getattr__`, `__dir__` and `__all__`. A name
    that is also the name of a module of the package must be imported eagerly: otherwise the attribute would be the
    module."""

    def __init__(self, package: dict[str, Any]) -> None:
        self._package = package
        self._modules: dict[str, str] = {}
        """Module of each lazy name."""
        self._imports = _RecordedImports(package, self._record)

    def __enter__(self) -> None:
        self._imports.begin()

    def __exit__(self, *_: object) -> None:
        self._imports.end()
        for name in self._modules:
            self._package.pop(name, None)
        self._package["__getattr__"] = self._import_name
        self._package["__dir__"] = self._names
        self._package["__all__"] = sorted(filter(self._is_public, self._names()))

    def _record(self, module: str, names: Sequence[str]) -> "_Placeholder":
        self._modules.update(dict.fromkeys(names, module))
        return _Placeholder()

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


class lazy_modules:
    """Context manager for the `from package import module` statements of the module with these `globals()`, for modules
    that it does not always need. The block follows the eager imports. Inside of `try: ... except ImportError`, and for
    optional dependencies, use an import in the function."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._imports = _RecordedImports(namespace, self._record)

    def __enter__(self) -> None:
        self._imports.begin()

    def __exit__(self, *_: object) -> None:
        self._imports.end()

    def _record(self, package: str, names: Sequence[str]) -> "_Placeholder":
        return _Placeholder(package if package.endswith(".") else f"{package}.", self._namespace)


class _Placeholder:
    """Stand-in for the module of a recorded import. With a namespace, its attributes are stand-ins for modules."""

    __slots__ = ("_namespace", "_prefix")

    def __init__(self, prefix: str = "", namespace: dict[str, Any] | None = None) -> None:
        self._prefix = prefix
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        return None if self._namespace is None else _LazyModule(self._prefix + name, self._namespace)


class _LazyModule:
    """Stand-in for a module, which imports it and gives way to it when its first attribute is used."""

    __slots__ = ("_module", "_namespace")

    def __init__(self, module: str, namespace: dict[str, Any]) -> None:
        self._module = module
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        module = import_module(self._module, self._namespace["__package__"])
        for key, value in list(self._namespace.items()):
            if value is self:
                self._namespace[key] = module
        return getattr(module, name)
