"""Tokens of all responses of a batch, as OpenAI's API shows them."""

from collections.abc import Mapping
from typing import Any, Self

import orjson

from ..core.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BatchUsage:
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Self) -> "BatchUsage":
        return BatchUsage(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.reasoning + other.reasoning,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "input_tokens": self.input,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.output,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.input + self.output,
        }


def batch_usage_from_json(value: Mapping[str, Any]) -> BatchUsage:
    """The usage that `BatchUsage.as_json` shows."""
    return BatchUsage(
        value["input_tokens"],
        value["input_tokens_details"]["cached_tokens"],
        value["output_tokens"],
        value["output_tokens_details"]["reasoning_tokens"],
    )


def usage_of_line(output: bytes) -> BatchUsage:
    """Usage of a line of an output file; zeros where the server did not report it."""
    body = orjson.loads(output)["response"]["body"]
    usage = body.get("usage") if isinstance(body, dict) else None
    return BatchUsage(
        _count(usage, "prompt_tokens"),
        _count(usage, "prompt_tokens_details", "cached_tokens"),
        _count(usage, "completion_tokens"),
        _count(usage, "completion_tokens_details", "reasoning_tokens"),
    )


def _count(value: Any, *names: str) -> int:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int) and value > 0 else 0
