"""What went wrong among tasks that ran side by side."""

from collections.abc import Iterator
from contextlib import contextmanager


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The others only followed from it, as a rule."""
    error = failures.exceptions[0]
    return first_of(error) if isinstance(error, BaseExceptionGroup) else error


@contextmanager
def one_failure() -> Iterator[None]:
    """Raises the first of several failures of a group by itself, as who called expects it."""
    try:
        yield
    except BaseExceptionGroup as failures:
        raise first_of(failures) from None
