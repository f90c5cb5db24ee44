"""Serialization of a spec for workers in other processes, and of their errors.

Errors travel as class, message and kind, without attributes that may not be picklable.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import BackendError, BatchAgentError, ErrorKind, PlanMismatch, SpecError, StoreError
from ..core.fast_dataclass import dataclass
from ..core.options.backend_settings import NAMED, BackendSettings, endpoints_in
from ..core.program_runtime import Runtime
from ..core.run_failure import RunStopped
from ..core.spec import BatchSpec
from ..lazy_imports import lazy_modules

with lazy_modules(globals()):
    from ..programs.runtimes import command_runtime
    from ..programs.runtimes.codex import codex_runtime
    from ..programs.runtimes.opencode import opencode_runtime
    from ..programs.workspace import workspace

_MESSAGE_ONLY: tuple[type[BatchAgentError], ...] = (PlanMismatch, SpecError, StoreError)
Dumps = Callable[[Any], bytes]
"""A `dumps` that also accepts functions and classes defined in a notebook, such as cloudpickle's."""


def spec_for_workers(spec: BatchSpec) -> BatchSpec:
    """The spec without what only the submitter uses: workers exchange inputs, facts and results with the coordinator.
    Files of tools and of the request log have the same paths on every node, whatever the workers' directories. Raises
    SpecError for a backend that only this process can use."""
    if not isinstance(spec.backend, NAMED):
        raise SpecError(
            f"backend={spec.backend!r} was opened in this process and cannot be used by the workers of "
            f"cluster={spec.distribution.cluster!r}: pass its URL instead."
        )
    for each in endpoints_in(spec.backend):
        if isinstance(each, BackendSettings):
            each.check_has_no_secret()
    return replace(
        spec,
        inputs=[],
        on_result=None,
        out=None,
        checkpoint_dir=_absolute(spec.checkpoint_dir),  # only for artifacts of tools
        log_requests=_absolute(spec.log_requests),
        runtime=None if spec.runtime is None else _runtime_for_workers(spec.runtime),
        rows=spec.rows.of_read_inputs(),
        prefix=replace(spec.prefix, strict_prefix=False),  # checks the inputs
        tool_caching=replace(spec.tool_caching, tool_cache_dir=_absolute(spec.tool_caching.tool_cache_dir)),
        distribution=replace(spec.distribution, cluster=None, workers=None),
        evaluation=replace(spec.evaluation, score=(), models=None),
    )


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _runtime_for_workers(runtime: Runtime) -> Runtime:
    """The runtime with the absolute path of the directory that agents get copies of."""
    kinds = codex_runtime.CodexRuntime | opencode_runtime.OpenCodeRuntime | command_runtime.ProcessRuntime
    if not isinstance(runtime, kinds) or runtime.workdir is None:
        return runtime
    return replace(runtime, workdir=workspace.as_path(runtime.workdir))


def serialize_spec(spec: BatchSpec, dumps: Dumps) -> bytes:
    """The serialized spec. Raises SpecError that names the part that cannot be serialized."""
    try:
        return dumps(spec)
    except Exception as error:
        for name, part in _parts(spec):
            if not _can_be_sent(part, dumps):
                raise SpecError(
                    f"{name} cannot be sent to other processes ({error}). Create objects that cannot be "
                    "copied, such as a connection or a lock, inside the function."
                ) from error
        raise SpecError(f"The run cannot be sent to other processes: {error}.") from error


def deserialize_spec(data: bytes) -> BatchSpec:
    """Deserializes a spec in a worker. Raises SpecError if a required module is not installed there."""
    try:
        spec = pickle.loads(data)  # noqa: S301 - sent by the submitter, whose code the cluster runs anyway
    except Exception as error:  # importing the user's modules may raise anything
        raise SpecError(
            f"A node of the cluster cannot load the tools or the schema ({type(error).__name__}: {error}). Install "
            "what they import on every node, or send it along: call ray.init(runtime_env={'working_dir': '.'}) before "
            "the run."
        ) from error
    assert isinstance(spec, BatchSpec)
    return spec


def _parts(spec: BatchSpec) -> Iterator[tuple[str, Any]]:
    for tool in spec.tools:
        yield f"Tool {getattr(tool, 'name', None) or getattr(tool, '__name__', repr(tool))!r}", tool
    yield "output_schema", spec.output_schema
    yield "runtime", spec.runtime


def _can_be_sent(part: Any, dumps: Dumps) -> bool:
    try:
        dumps(part)
    except Exception:  # noqa: BLE001 - the user's objects may raise anything
        return False
    return True


@dataclass(frozen=True, slots=True)
class RemoteError:
    """Serializable description of a worker's error."""

    name: str
    message: str
    kind: ErrorKind = ErrorKind.INTERNAL

    @classmethod
    def of(cls, error: BatchAgentError) -> "RemoteError":
        name = next((kept.__name__ for kept in _MESSAGE_ONLY if isinstance(error, kept)), type(error).__name__)
        kind = error.kind if isinstance(error, BackendError | RunStopped) else ErrorKind.INTERNAL
        return cls(name, str(error), kind)

    def error(self) -> BatchAgentError:
        """The error as the worker raised it."""
        if self.name == BackendError.__name__:
            return BackendError(self.kind, self.message)
        for kept in _MESSAGE_ONLY:
            if self.name == kept.__name__:
                return kept(self.message)
        return RunStopped(self.kind, self.message)
