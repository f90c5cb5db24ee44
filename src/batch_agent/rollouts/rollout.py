"""Rollout of an agent: the tokens of its requests, the places where they continue each other, and masks for
training."""

from collections.abc import Iterator, Sequence

from ..core.facts import Fact, Replied, Sampled
from ..core.fast_dataclass import dataclass
from ..core.requests import ID_BYTES, TurnTokens, unpacked_ids, unpacked_logprobs
from .token_record import TokenRecord, decode_record


@dataclass(frozen=True, slots=True)
class Break:
    """A prompt that does not continue the previous request: the tokens that the model sampled are not those that it saw
    afterwards."""

    thread: int
    turn: int
    """Index of the request in its conversation."""
    position: int
    """Number of ids that both have in common."""
    expected: int
    """Number of ids of the previous request, including the sampled ones."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Ids of consecutive requests that continue each other, as one sequence."""

    prompt_ids: list[int]
    """Prompt of the first request."""
    completion_ids: list[int]
    """Everything after the first prompt: what the model sampled, and the tool results and templates in between."""
    mask: list[int]
    """Mask of the completion: 1 for what the model sampled, 0 for everything else."""
    logprobs: list[float]
    """Log probabilities of the completion; 0.0 where the mask is 0."""
    thread: int
    """Index of the conversation; 0 is that of the agent's task."""
    first_turn: int
    turns: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """Tokens of one agent."""

    records: tuple[TokenRecord, ...]
    """The requests in order, with complete prompts, without requests that were repeated or belong to a failed
    attempt."""
    missing: int = 0
    """Number of replies whose tokens were not kept, because an earlier run without `tokens=True` received them."""

    @property
    def threads(self) -> tuple[tuple[TurnTokens, ...], ...]:
        """Tokens of the requests of each conversation. The first conversation is the longest, which is that of the
        agent's task."""
        found: dict[str, tuple[TurnTokens, ...]] = {}
        for record in self.records:
            found[record.thread] = (*found.get(record.thread, ()), record.tokens)
        return tuple(sorted(found.values(), key=len, reverse=True))

    @property
    def turns(self) -> tuple[TurnTokens, ...]:
        """Tokens of each request in the conversation of the agent's task."""
        return self.threads[0]

    @property
    def breaks(self) -> tuple[Break, ...]:
        """Breaks in all conversations."""
        return tuple(found for thread in range(len(self.threads)) for found in self.breaks_of(thread))

    def breaks_of(self, thread: int) -> list[Break]:
        """Places where a prompt of a conversation does not continue the previous request."""
        found, turns = list[Break](), self.threads[thread]
        for number in range(1, len(turns)):
            expected, prompt = turns[number - 1].sequence, turns[number].prompt
            if not prompt.startswith(expected):
                found.append(Break(thread, number, _common_ids(expected, prompt), len(expected) // ID_BYTES))
        return found

    def sequences(self) -> Iterator[TokenSequence]:
        """The conversations, split at their breaks."""
        for thread, turns in enumerate(self.threads):
            starts = [0, *(each.turn for each in self.breaks_of(thread))]
            for start, end in zip(starts, [*starts[1:], len(turns)], strict=True):
                yield _joined(turns[start:end], thread, start)


def rollout_of(facts: Sequence[Fact]) -> Rollout | None:
    """The rollout of an agent; None if no tokens were kept. Raises ValueError for records that cannot be read."""
    kept, missing = list[TokenRecord](), 0
    pending = list[TokenRecord]()
    is_program = False
    for fact in facts:
        if isinstance(fact, Sampled):
            record = decode_record(fact.record)
            is_program = is_program or bool(record.attempt)
            _add(pending, record)
        elif isinstance(fact, Replied):
            answered = _of_last_attempt(pending)
            missing += not answered
            kept += answered
            pending.clear()
    if is_program:  # a failed one has requests, but no reply
        kept += _of_last_attempt(pending)
    return Rollout(tuple(_with_prompts(kept)), missing) if kept else None


def _add(records: list[TokenRecord], record: TokenRecord) -> None:
    """Adds a record. A request that was repeated, after a crash or with another choice of tools, replaces the earlier
    one."""
    records[:] = [each for each in records if (each.attempt, each.turn) != (record.attempt, record.turn)]
    records.append(record)


def _of_last_attempt(records: Sequence[TokenRecord]) -> list[TokenRecord]:
    last = next((record.attempt for record in reversed(records)), "")
    return sorted((record for record in records if record.attempt == last), key=lambda record: record.turn)


def _with_prompts(records: Sequence[TokenRecord]) -> Iterator[TokenRecord]:
    previous: dict[str, bytes] = {}
    for record in records:
        whole = record.completed(previous.get(record.thread, b""))
        previous[record.thread] = whole.tokens.sequence
        yield whole


def _joined(turns: Sequence[TurnTokens], thread: int, first: int) -> TokenSequence:
    prompt = turns[0].prompt
    ids, mask, logprobs = list[int](), list[int](), list[float]()
    end = len(prompt)
    for turn in turns:
        between = unpacked_ids(turn.prompt[end:])
        sampled = unpacked_ids(turn.sampled)
        ids += between + sampled
        mask += [0] * len(between) + [1] * len(sampled)
        logprobs += [0.0] * len(between) + unpacked_logprobs(turn.logprobs)
        end = len(turn.prompt) + len(turn.sampled)
    return TokenSequence(unpacked_ids(prompt), ids, mask, logprobs, thread, first, len(turns))


def _common_ids(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other)) // ID_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * ID_BYTES] == other[: middle * ID_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
