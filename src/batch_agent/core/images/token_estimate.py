"""Tokens of an image by the formulas of the makers of models: estimates for forecasts. What a server counts is known
from its replies only. Sources: docs/guides/images.md."""

import re
from math import ceil, floor, sqrt

from ..fast_dataclass import dataclass
from . import ImageRef


@dataclass(frozen=True, slots=True)
class _Tiles:
    """OpenAI: the image is reduced to 2,048 pixels, then to a shorter side of 768, and cut into tiles of 512."""

    base: int
    tile: int

    def tokens(self, width: int, height: int) -> int:
        width, height = _reduced(width, height, 2_048 / max(width, height))
        width, height = _reduced(width, height, 768 / min(width, height))
        return self.base + self.tile * ceil(width / 512) * ceil(height / 512)


@dataclass(frozen=True, slots=True)
class _Patches:
    """A token for each square of so many pixels; a larger image is reduced first."""

    side: int
    most: int
    longest: int = 1_000_000
    factor: float = 1.0

    def tokens(self, width: int, height: int) -> int:
        width, height = _reduced(width, height, self.longest / max(width, height))
        if self._count(width, height) > self.most:
            width, height = _reduced(width, height, sqrt(self.most * self.side**2 / (width * height)))
        return ceil(min(self.most, self._count(width, height)) * self.factor)

    def _count(self, width: int, height: int) -> int:
        return ceil(width / self.side) * ceil(height / self.side)


@dataclass(frozen=True, slots=True)
class _Crops:
    """Gemini: a small image is one crop, a larger one is cut into squares whose side depends on its shorter side."""

    crop: int = 258

    def tokens(self, width: int, height: int) -> int:
        if max(width, height) <= 384:
            return self.crop
        side = min(768, max(256, floor(min(width, height) / 1.5)))
        return self.crop * ceil(width / side) * ceil(height / side)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A number that does not depend on the size."""

    each: int

    def tokens(self, width: int, height: int) -> int:
        return self.each


_Formula = _Tiles | _Patches | _Crops | _Fixed
_TILES = _Tiles(85, 170)
_CLAUDE = _Patches(28, 1_568, longest=1_568)
_FORMULAS: tuple[tuple[str, _Formula], ...] = (
    (r"gpt-4o-mini", _Tiles(2_833, 5_667)),
    (r"gpt-(4\.1|5[\d.]*)-mini", _Patches(32, 1_536, factor=1.62)),
    (r"gpt-(4\.1|5[\d.]*)-nano", _Patches(32, 1_536, factor=2.46)),
    (r"\bo4-mini", _Patches(32, 1_536, factor=1.72)),
    (r"gpt-5", _Tiles(70, 140)),
    (r"\bo[13]\b", _Tiles(75, 150)),
    (r"gpt-4|chatgpt", _TILES),
    (r"claude-opus-4-[7-9]", _Patches(28, 4_784, longest=2_576)),
    (r"claude", _CLAUDE),
    (r"gemini", _Crops()),
    (r"qwen3.*vl", _Patches(32, 16_384)),
    (r"qwen.*vl", _Patches(28, 16_384)),
    (r"llava-1\.5|llava-v1\.5", _Fixed(576)),
)
_BY_SERVICE: dict[str, _Formula] = {"openai": _TILES, "azure": _TILES, "anthropic": _CLAUDE}


def estimated_tokens(image: ImageRef, model: str, service: str) -> int:
    """Tokens of an image on a model, by its name, else by the service. Of an image or a model that is not known: the
    estimate of the image itself."""
    formula = _formula(model.lower()) or _BY_SERVICE.get(service)
    if formula is None or not (image.width and image.height):
        return image.tokens
    return formula.tokens(image.width, image.height)


def _formula(model: str) -> _Formula | None:
    return next((formula for pattern, formula in _FORMULAS if re.search(pattern, model)), None)


def _reduced(width: int, height: int, factor: float) -> tuple[int, int]:
    """The size after a reduction; a factor above 1 changes nothing."""
    return (width, height) if factor >= 1 else (max(1, floor(width * factor)), max(1, floor(height * factor)))
