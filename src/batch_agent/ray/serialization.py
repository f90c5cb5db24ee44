"""What a worker elsewhere is given: the question, without what is the caller's own."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import SpecError
from ..core.spec import BatchSpec

Dumps = Callable[[Any], bytes]
"""That of a library which also takes functions and classes of a notebook."""


def for_workers(spec: BatchSpec) -> BatchSpec:
    """Inputs come from the hub, facts and results go there. Raises SpecError where only this process could ask."""
    if not isinstance(spec.backend, str | Sequence):
        raise SpecError(
            f"backend={spec.backend!r} was opened in this process, and cluster={spec.together.cluster!r} works in "
            "others: give its URL instead."
        )
    together = replace(spec.together, cluster=None, workers=None)
    return replace(spec, inputs=[], on_result=None, out=None, checkpoint_dir=None, together=together)


def packed(spec: BatchSpec, dumps: Dumps) -> bytes:
    """Raises SpecError that names what cannot be sent."""
    try:
        return dumps(spec)
    except Exception as error:
        for name, part in _parts(spec):
            if not _can_be_sent(part, dumps):
                raise SpecError(
                    f"{name} cannot be sent to other processes ({error}). What cannot be copied, such as a connection "
                    "or a lock, must be made inside the function, where it runs."
                ) from error
        raise SpecError(f"The run cannot be sent to other processes: {error}.") from error


def unpacked(data: bytes) -> BatchSpec:
    """In a worker. Raises SpecError where something is not installed there."""
    try:
        spec = pickle.loads(data)  # noqa: S301 - from our caller, by a cluster that runs its code anyway
    except Exception as error:  # importing the user's modules may raise anything
        raise SpecError(
            f"A node of the cluster cannot load the tools or the schema ({type(error).__name__}: {error}). What they "
            "import must be installed on every node, or be sent along: ray.init(runtime_env={'working_dir': '.'}) "
            "before the run."
        ) from error
    assert isinstance(spec, BatchSpec)
    return spec


def _parts(spec: BatchSpec) -> Iterator[tuple[str, Any]]:
    for tool in spec.tools:
        yield f"Tool {getattr(tool, 'name', None) or getattr(tool, '__name__', repr(tool))!r}", tool
    yield "output_schema", spec.output_schema


def _can_be_sent(part: Any, dumps: Dumps) -> bool:
    try:
        dumps(part)
    except Exception:  # noqa: BLE001 - the user's objects may raise anything
        return False
    return True
