from collections import Counter

import pytest

from batch_agent.sim.faults import Fault, FaultOrder, Faults, Kind, parse
from batch_agent.sim.sim_config import FaultRates


def draws(rates: FaultRates, count: int = 4000) -> list[Fault | None]:
    faults = Faults(rates)
    return [faults.of_chance() for _ in range(count)]


def test_faults_come_at_their_rates_and_in_the_same_order_for_the_same_seed() -> None:
    rates = FaultRates(error_500=0.1, error_429=0.05, reset=0.2, retry_after_s=3)
    seen = draws(rates)
    assert seen == draws(rates)
    assert seen != draws(FaultRates(error_500=0.1, error_429=0.05, reset=0.2, retry_after_s=3, seed=1))
    counts = Counter(str(fault.status) if fault and fault.status else fault and fault.kind for fault in seen)
    assert counts["500"] / 4000 == pytest.approx(0.1, abs=0.02)
    assert counts["429"] / 4000 == pytest.approx(0.05, abs=0.02)
    assert counts[Kind.RESET] / 4000 == pytest.approx(0.2, abs=0.03)
    assert {fault.retry_after_s for fault in seen if fault and fault.status == 429} == {3}


def test_without_rates_nothing_fails() -> None:
    assert set(draws(FaultRates(), 100)) == {None}


def test_an_ordered_fault_stops_after_its_attempts_for_each_prompt_alone() -> None:
    faults = Faults(FaultRates())
    order = FaultOrder(Fault(Kind.RESET), times=2)
    assert [bool(faults.of_order(order, b"a")) for _ in range(4)] == [True, True, False, False]
    assert faults.of_order(order, b"b")
    assert [bool(faults.of_order(FaultOrder(Fault(Kind.RESET)), b"c")) for _ in range(3)] == [True] * 3


def test_rates_that_are_no_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="shares"):
        FaultRates(reset=0.7, stall=0.7)


def test_any_error_status_is_a_fault_and_nothing_else_is() -> None:
    assert parse("503", FaultRates()) == Fault(Kind.STATUS, status=503)
    assert parse("stall", FaultRates(stall_s=2)).stall_s == 2
    with pytest.raises(ValueError, match="'200'"):
        parse("200", FaultRates())
