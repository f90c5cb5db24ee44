"""The device from the view of the host tier. Both are parts of the plugin in vLLM's scheduler process, created by vLLM
independently of each other."""

from typing import Protocol


class DeviceTier(Protocol):
    """The part of the pins that an exclusive host tier needs."""

    def pinned_of(self, name: str) -> int: ...

    def on_stored(self, name: str) -> None: ...


_device: DeviceTier | None = None


def bind(device: DeviceTier) -> None:
    """Registers the pins of this process."""
    global _device
    _device = device


def keeps(session: str) -> bool:
    """Whether the context of a waiting session is pinned."""
    return _device is not None and _device.pinned_of(session) > 0


def release(session: str) -> None:
    """Notes that the host tier has the session's context."""
    if _device is not None:
        _device.on_stored(session)
