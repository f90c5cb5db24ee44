"""Telling our own cancellation from one that leaked out of somebody else's code."""

import asyncio


def is_being_cancelled() -> bool:
    """Whether the running task was told to stop. If not, a CancelledError is only a failure: a callback or a backend
    awaited something that was cancelled, and no result may be lost for it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_failure(error: BaseException) -> bool:
    """Whether what a user's code raised is a failure of that code, whatever its class: libraries raise exceptions of
    their own that are no Exception. It is not for Ctrl-C, for the cancellation of the running task, or for a coroutine
    that is closed because its loop is gone."""
    if isinstance(error, KeyboardInterrupt):
        return False
    if isinstance(error, GeneratorExit):
        return _has_task()
    return not (isinstance(error, asyncio.CancelledError) and is_being_cancelled())


def _has_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False
