"""Grants of a worker, by the entries of all workers."""

import math

import pytest

from batch_agent.schedule.kv_account import KvAccount, KvDemand, KvEntry, KvLearned, KvUse, grant

LIMIT = 1000.0


def entry(residents: int = 0, waiting: int = 0, spare: float = 0.0, since: float | None = None) -> KvEntry:
    return KvEntry(10.0, KvUse(residents, 100.0 * residents, 100.0 * residents, waiting=waiting, spare=spare), since)


def demand(used: float, waiters: int, *, limit: float | None = LIMIT, may_overcommit: bool = False) -> KvDemand:
    """Waiters of 100 tokens each."""
    counts = range(1, waiters + 1)
    added = [KvUse(count, 100.0 * count, 100.0 * count, busy=count, waiting=-count) for count in counts]
    return KvDemand(used, [used + 100.0 * count for count in counts], added, limit, may_overcommit)


def test_a_lone_worker_may_use_the_whole_limit() -> None:
    found, written = grant(KvAccount({}), "a", KvUse(3, 300.0, 300.0), demand(300.0, 0), 1.0)
    assert (found.tokens, found.max_residents) == (LIMIT, math.inf)
    assert written.use.spare == 700.0


def test_without_a_limit_anything_is_granted() -> None:
    found, written = grant(KvAccount({"b": entry(9)}), "a", KvUse(), demand(900.0, 2, limit=None), 1.0)
    assert (found.tokens, written.use.spare) == (math.inf, 0.0)


def test_waiters_that_fit_are_entered_as_residents() -> None:
    account = KvAccount({"b": entry(8, waiting=1)})
    found, written = grant(account, "a", KvUse(waiting=5), demand(800.0, 5), 1.0)
    assert found.tokens == LIMIT
    assert (written.use.residents, written.use.busy, written.use.waiting, written.use.spare) == (2, 2, 3, 0.0)


def test_a_reserve_of_another_worker_is_not_free() -> None:
    account = KvAccount({"b": entry(5, spare=400.0)})
    found, written = grant(account, "a", KvUse(waiting=5), demand(500.0, 5), 1.0)
    assert (found.tokens, written.use.residents) == (600.0, 1)


def test_workers_without_waiters_reserve_part_of_what_is_free() -> None:
    account = KvAccount({"b": entry(2)})
    found, written = grant(account, "a", KvUse(waiting=1), demand(200.0, 1), 1.0)
    assert (found.tokens, written.use.spare) == (475.0, 175.0)


def test_a_worker_above_its_share_leaves_free_room_to_one_below() -> None:
    account = KvAccount({"b": entry(2, waiting=1)})
    found, written = grant(account, "a", KvUse(6, 600.0, 600.0, waiting=4), demand(800.0, 4), 1.0)
    assert (found.tokens, found.max_residents, written.use.residents) == (800.0, 5, 6)


def test_contexts_beyond_the_limit_grant_nothing_until_they_fit_again() -> None:
    account = KvAccount({"b": entry(8, waiting=1)})
    found, written = grant(account, "a", KvUse(4, 400.0, 400.0, waiting=1), demand(1200.0, 1), 1.0)
    assert (found.tokens, written.use.residents) == (LIMIT, 4)


def test_an_agent_that_is_larger_than_the_limit_is_admitted_if_there_is_no_other() -> None:
    account = KvAccount({"b": entry(waiting=1, since=5.0)})
    big = KvDemand(0.0, [5000.0], [KvUse(1, 5000.0, 5000.0)], LIMIT)
    found, written = grant(account, "a", KvUse(waiting=1), big, 1.0)
    assert (found.tokens, found.overcommit, written.use.residents) == (LIMIT, True, 1)
    account = KvAccount({"b": entry(1)})
    found, written = grant(account, "a", KvUse(waiting=1), big, 1.0)
    assert written.use.residents == 0


def test_workers_take_turns_longest_wait_first() -> None:
    account = KvAccount({"a": entry(waiting=1, since=3.0), "b": entry(waiting=1, since=2.0), "c": entry(waiting=1)})
    assert grant(account, "a", KvUse(waiting=1), demand(0.0, 1, limit=150.0), 4.0)[0].max_residents == 0.0
    assert grant(account, "b", KvUse(waiting=1), demand(0.0, 1, limit=150.0), 4.0)[0].max_residents == 1.0


@pytest.mark.parametrize(("spare", "is_granted"), [(0.0, True), (50.0, False)])
def test_an_agent_is_overcommitted_only_by_current_figures_of_all_workers(spare: float, is_granted: bool) -> None:
    account = KvAccount({"b": entry(9, spare=spare)})
    found, written = grant(account, "a", KvUse(waiting=1), demand(950.0, 1, may_overcommit=True), 1.0)
    assert found.overcommit is is_granted
    assert (written.use.residents, written.use.overcommitted) == ((1, 100.0) if is_granted else (0, 0.0))


def test_expired_entries_are_gone_and_what_was_learned_stays() -> None:
    learned = KvLearned(900.0, True, 0.1, 7, 3, 50.0, 80.0)
    account = KvAccount({"a": entry(2, since=None), "b": KvEntry(20.0, KvUse(1), 4.0)}, learned)
    assert KvAccount.from_json(account.to_json(), 5.0) == account
    later = KvAccount.from_json(account.to_json(), 10.0)
    assert list(later.entries) == ["b"]
    assert later.learned == learned
    assert later.others("a").residents == 1
