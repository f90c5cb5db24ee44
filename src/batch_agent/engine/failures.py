"""What went wrong among tasks that ran side by side."""

from contextlib import AbstractContextManager
from types import TracebackType


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The others only followed from it, as a rule."""
    error = failures.exceptions[0]
    return first_of(error) if isinstance(error, BaseExceptionGroup) else error


def one_failure() -> AbstractContextManager[None]:
    """Raises the first of several failures of a group by itself, as who called expects it."""
    return _ONE


class _OneFailure:
    """Knows nothing: one serves all, also those inside each other."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, BaseExceptionGroup):
            raise first_of(error) from None


_ONE = _OneFailure()
