"""Telling our own cancellation from one that leaked out of somebody else's code."""

import asyncio


def is_being_cancelled() -> bool:
    """Whether the running task was told to stop. If not, a CancelledError is only a failure: a callback or a backend
    awaited something that was cancelled, and no result may be lost for it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
