"""How much of the last requests went wrong."""

from batch_agent.schedule.health import Outcomes


def outcomes(good: int, bad: int) -> Outcomes:
    seen = Outcomes()
    for _ in range(good):
        seen.went_well()
    for _ in range(bad):
        seen.went_wrong()
    return seen


def test_a_few_that_went_wrong_show_nothing() -> None:
    assert [outcomes(0, bad).share_of_trouble for bad in range(4)] == [0.0, 0.0, 0.0, 1.0]


def test_what_was_long_ago_is_forgotten() -> None:
    assert outcomes(100_000, 30).share_of_trouble > 0.5
    recovered = outcomes(0, 100_000)
    for _ in range(200):
        recovered.went_well()
    assert recovered.share_of_trouble == 0.0
