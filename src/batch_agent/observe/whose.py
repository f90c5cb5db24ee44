"""Whose words they are, in a run that several workers share."""


def at_worker(worker: str, said: str) -> str:
    """Of this process, which has no name, as they are."""
    return f"{worker}: {said}" if worker else said
