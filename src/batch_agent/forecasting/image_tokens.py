"""Images of the inputs in a forecast: their tokens, estimated from their sizes."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from ..core.fast_dataclass import dataclass
from ..core.images import Image, ImageRef
from ..core.images.token_estimate import estimated_tokens
from ..core.protocols import Traits
from ..core.run_reports import PrefixReport
from ..media.image_files import identify
from ..plan.template import MARK_CHARS, Template

_MAX_INPUTS = 200
"""Inputs whose images are read, spread over all."""


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """Tokens of images on the model of a server."""

    traits: Traits
    chars_per_token: float = 4.0

    def of(self, image: ImageRef) -> int:
        return estimated_tokens(image, self.traits.model, self.traits.name)

    def of_inputs(self, template: Template, rows: Sequence[Any]) -> float:
        """Mean tokens of the images of an input, beyond those of the marks in its text. Blocks: files are read."""
        step = max(1, len(rows) // _MAX_INPUTS)
        chosen = rows[::step][:_MAX_INPUTS]
        return fmean(self._of_input(template, row) for row in chosen) if chosen else 0.0

    def _of_input(self, template: Template, row: Any) -> float:
        try:
            return sum(map(self._beyond_mark, template.images(row).values()))
        except ValueError:  # it gets no agent
            return 0.0

    def _beyond_mark(self, image: Image) -> float:
        return self.of(identify(image)) - MARK_CHARS / self.chars_per_token


def with_images(report: PrefixReport, tokens: float) -> PrefixReport:
    """The report with so many tokens of images in a prompt, which no other prompt is taken to share."""
    if not tokens or not report.prompt_tokens:
        return report
    longer = report.prompt_tokens + round(tokens)
    predicted = None if report.predicted is None else report.predicted * report.prompt_tokens / longer
    return replace(report, prompt_tokens=longer, predicted=predicted)


def image_basis(tokens: float, *, canary: bool) -> tuple[str, ...]:
    """What the forecast assumes of images, for the user."""
    corrected = ", corrected by what the server counted for the canary" if canary else ""
    return (f"Images of an input have about {tokens:,.0f} tokens, by their sizes and the model's formula{corrected}.",)
