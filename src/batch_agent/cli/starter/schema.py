"""The schema of the answers."""

from typing import Literal

from pydantic import BaseModel


class Review(BaseModel):
    """Review of one order. An invalid answer is requested again."""

    order: int
    product: Literal["lamp", "phone", "desk", "blender"]
    sentiment: Literal["positive", "negative"]
