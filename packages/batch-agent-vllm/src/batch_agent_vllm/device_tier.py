"""The device as the host tier sees it. Both are parts of the plugin in vLLM's scheduler process, which vLLM creates
independently of each other."""

from typing import Protocol


class DeviceTier(Protocol):
    """What an exclusive host tier needs of the pins."""

    def pinned_of(self, name: str) -> int: ...

    def on_stored(self, name: str) -> None: ...


_device: DeviceTier | None = None


def bind(device: DeviceTier) -> None:
    """The pins of this process are active."""
    global _device
    _device = device


def keeps(session: str) -> bool:
    """Whether the context of a waiting session is pinned."""
    return _device is not None and _device.pinned_of(session) > 0


def release(session: str) -> None:
    """The host tier has the session's context."""
    if _device is not None:
        _device.on_stored(session)
