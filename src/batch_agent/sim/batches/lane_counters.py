"""What the simulated service would bill, by lane."""

from collections.abc import Iterator
from dataclasses import dataclass

LANES = ("standard", "flex", "batch")


@dataclass(slots=True)
class LaneCounters:
    """Requests that were accepted, or lines of batches that succeeded, and their tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Billing:
    def __init__(self) -> None:
        self.lanes = {lane: LaneCounters() for lane in LANES}
        self.submissions = {"openai": 0, "anthropic": 0}
        """Batches that were created, including those that failed in validation."""

    def count(self, lane: str, prompt_tokens: int, completion_tokens: int) -> None:
        counters = self.lanes[lane]
        counters.requests += 1
        counters.prompt_tokens += prompt_tokens
        counters.completion_tokens += completion_tokens

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Name, labels and value of each metric."""
        for name in ("requests", "prompt_tokens", "completion_tokens"):
            for lane, counters in self.lanes.items():
                yield f"sim:lane_{name}_total", f'{{lane="{lane}"}}', getattr(counters, name)
        for api, count in self.submissions.items():
            yield "sim:batch_submissions_total", f'{{api="{api}"}}', count
