"""Keys tell inputs apart, and nothing else."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.plan.fingerprint import Keys

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters())
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(part) for key, part in reversed(value.items())}
    return [shuffled(part) for part in value] if isinstance(value, list) else value


@given(JSON)
def test_the_order_of_dicts_is_irrelevant(value: Any) -> None:
    assert Keys(b"run").key(value) == Keys(b"run").key(shuffled(value))


@given(JSON, JSON)
def test_different_inputs_have_different_keys(one: Any, other: Any) -> None:
    same = repr(one) == repr(other) or repr(shuffled(one)) == repr(other)
    if not same and one != other:
        assert Keys(b"run").key(one) != Keys(b"run").key(other)


@given(st.lists(st.sampled_from(["a", "b", 1, {"x": 1}]), max_size=12))
def test_the_keys_of_a_run_are_unique_and_reproducible(values: list[Any]) -> None:
    first, again = Keys(b"run"), Keys(b"run")
    keys = [first.key(value) for value in values]
    assert len(set(keys)) == len(values)
    assert [again.key(value) for value in values] == keys


@given(JSON, st.binary(min_size=1, max_size=16), st.binary(min_size=1, max_size=16))
def test_another_run_has_other_keys(value: Any, one: bytes, other: bytes) -> None:
    if one.rstrip(b"\0") != other.rstrip(b"\0"):
        assert Keys(one).key(value) != Keys(other).key(value)
