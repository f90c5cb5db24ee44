"""What each answer must be."""

from typing import Literal

from pydantic import BaseModel


class Review(BaseModel):
    """Of one order. An answer that does not fit is asked for again."""

    order: int
    product: Literal["lamp", "phone", "desk", "blender"]
    sentiment: Literal["positive", "negative"]
