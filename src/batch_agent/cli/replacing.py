"""Files that are there whole or not at all, as the commands write them."""

from ..files import replacing

__all__ = ["replacing"]
