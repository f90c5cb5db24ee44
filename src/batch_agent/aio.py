"""Additions to asyncio: the clock of the running loop, and one exception instead of a group."""

import asyncio
from contextlib import AbstractContextManager
from types import TracebackType


def now() -> float:
    """Seconds on the clock of the running loop: the clock of timers, timeouts and virtual time."""
    return asyncio.get_running_loop().time()


def unwrap_group(error: BaseException, *most_important: type[BaseException]) -> BaseException:
    """The exception that explains a failed task group: the first one, since the others follow from it as a rule. Given
    `most_important`, the first exception of these classes goes before others, in the order of the classes. An exception
    that is not a group is returned as it is."""
    while isinstance(error, BaseExceptionGroup):
        exceptions = error.exceptions
        ranked = (each for kind in most_important for each in exceptions if isinstance(each, kind))
        error = next(ranked, exceptions[0])
    return error


def ungrouped() -> AbstractContextManager[None]:
    """`with ungrouped(): ...` raises the first exception of a group instead of the group."""
    return _UNGROUPED


class _Ungrouped:
    """Has no state: one instance serves all blocks, nested ones too."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, BaseExceptionGroup):
            raise unwrap_group(error) from None


_UNGROUPED = _Ungrouped()
