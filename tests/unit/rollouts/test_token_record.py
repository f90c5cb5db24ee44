import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.core.facts import Sampled
from batch_agent.core.requests import TurnTokens, packed_ids, packed_logprobs
from batch_agent.rollouts.token_record import TokenRecord, decode_record, encode_record
from batch_agent.store.codec import decode, encode

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=30).map(packed_ids)


def tokens(prompt: bytes, sampled: bytes) -> TurnTokens:
    logprobs = packed_logprobs([-0.25] * (len(sampled) // 4))
    return TurnTokens(prompt, sampled, logprobs, "tool_calls", "m\n", "v")


@settings(max_examples=20)
@given(IDS, IDS, st.integers(0, 99), st.booleans())
def test_a_record_is_read_as_it_was_written(prompt: bytes, sampled: bytes, turn: int, as_ids: bool) -> None:
    record = TokenRecord(tokens(prompt, sampled), turn, "a1", "t1", sent_as_ids=as_ids)
    assert decode_record(encode_record(record)) == record


def test_a_long_record_is_compressed() -> None:
    record = TokenRecord(tokens(packed_ids(range(2000)), packed_ids([7] * 500)), 0)
    assert len(encode_record(record)) < 8000
    assert decode_record(encode_record(record)) == record


@settings(max_examples=20)
@given(IDS, IDS, IDS)
def test_a_prompt_that_continues_the_record_before_it_is_stored_without_it(
    previous: bytes, between: bytes, sampled: bytes
) -> None:
    record = TokenRecord(tokens(previous + between, sampled), 1)
    stored = decode_record(encode_record(record, previous))
    assert stored.tokens.prompt == (between if previous else previous + between)
    assert stored.completed(previous) == record


def test_a_record_that_continues_a_missing_one_is_refused() -> None:
    previous = packed_ids([1, 2, 3])
    stored = decode_record(encode_record(TokenRecord(tokens(previous, b""), 1), previous))
    with pytest.raises(ValueError, match="missing"):
        stored.completed(b"")


@pytest.mark.parametrize("data", [b"", b"{}\n", b"[]\nx", b'{"turn":1}\nxx', b"\x00\xff"])
def test_other_data_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_record(data)


def test_the_fact_is_stored_as_bytes() -> None:
    fact = Sampled(encode_record(TokenRecord(tokens(packed_ids([1]), packed_ids([2])), 0)))
    kind, data = encode(fact)
    assert (kind, data) == ("sampled", fact.record)
    assert decode(kind, data) == fact
