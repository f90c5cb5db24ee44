"""Execution of one line, with the answer that an ordinary request with this body gets."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..faults import Faults
from ..generation import Generation
from ..openai_responses import usage_body
from ..request_errors import RequestError
from .batch_work import Outcome, WorkLine

LANES = ("standard", "flex", "batch")


@dataclass(slots=True)
class LaneCounters:
    """Numbers of accepted requests, or of lines of batches that succeeded, and their tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Billing:
    def __init__(self) -> None:
        self.lanes = {lane: LaneCounters() for lane in LANES}
        self.submissions = {"openai": 0, "anthropic": 0}
        """Number of created batches, including those that failed in validation."""

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


Read = Callable[[dict[str, Any]], Generation]
EncodeError = Callable[[int, str, str, str | None], bytes]


class LineRunner:
    """Executes lines at once, outside of the engine, and bills those that succeed."""

    def __init__(self, faults: Faults, billing: Billing) -> None:
        self._faults = faults
        self._billing = billing

    def run(self, read: Read, encode_error: EncodeError, line: WorkLine) -> Outcome:
        try:
            generation = read({**line.body, "stream": False, "stream_options": None})
        except RequestError as error:
            return Outcome("errored", error.status, encode_error(error.status, str(error), error.kind, error.param))
        for each in generation.prompt_faults:
            if fault := self._faults.of_order(each.order, each.prompt):
                status = fault.status or 500
                return Outcome("errored", status, encode_error(status, "simulated failure of a line", "APIError", None))
        prompt_tokens = sum(each.prompt_tokens for each in generation.sequences)
        completion_tokens = sum(each.output_tokens for each in generation.sequences)
        self._billing.count("batch", prompt_tokens, completion_tokens)
        usage = usage_body(prompt_tokens, completion_tokens, 0)
        return Outcome("succeeded", 200, generation.body_encoder.plain(generation.replies, usage))


def prompt_tokens_of(read: Read, body: Mapping[str, Any]) -> int:
    """Tokens that a line adds to the queue; 0 if it cannot be read."""
    try:
        return sum(each.prompt_tokens for each in read({**body, "stream": False, "stream_options": None}).sequences)
    except RequestError:
        return 0
