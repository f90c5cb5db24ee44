"""Slots go to those who are furthest, and never beyond the limit."""

from batch_agent.schedule.slot_queue import MAX_ROUNDS_PASSED_OVER, Priority, SlotQueue

FRESH = Priority(is_fresh=True)


def under_way(turns_left: int, since: int = 0) -> Priority:
    return Priority(False, turns_left, since)


def test_a_free_slot_is_taken_at_once() -> None:
    slots = SlotQueue(2)
    assert [slots.try_acquire(), slots.try_acquire(), slots.try_acquire()] == [True, True, False]
    assert slots.in_use == 2


def test_agents_under_way_go_first_then_those_with_the_fewest_turns_left_then_the_oldest() -> None:
    slots = SlotQueue(1)
    slots.try_acquire()
    ranks = [FRESH, under_way(3, 1), under_way(2, 9), under_way(2, 4), FRESH, under_way(2, 4)]
    tickets = [slots.enqueue(rank) for rank in ranks]
    granted = [slots.release() for _ in ranks]
    assert granted == [[tickets[place]] for place in (3, 5, 2, 1, 0, 4)]
    assert slots.waiting == 0
    assert slots.release() == []
    assert slots.in_use == 0


def test_a_higher_limit_lets_several_in_at_once() -> None:
    slots = SlotQueue(1)
    slots.try_acquire()
    tickets = [slots.enqueue(FRESH) for _ in range(4)]
    assert slots.resize(3) == tickets[:2]
    assert (slots.in_use, slots.waiting) == (3, 2)


def test_a_lower_limit_takes_effect_as_slots_come_back() -> None:
    slots = SlotQueue(3)
    for _ in range(3):
        slots.try_acquire()
    ticket = slots.enqueue(FRESH)
    assert slots.resize(1) == []
    assert not slots.try_acquire()
    assert [slots.release(), slots.release(), slots.release()] == [[], [], [ticket]]


def test_no_slot_is_granted_while_the_limit_is_zero() -> None:
    slots = SlotQueue(2)
    assert slots.resize(0) == []
    assert not slots.try_acquire()
    ticket = slots.enqueue(FRESH)
    assert slots.resize(2) == [ticket]


def test_a_ticket_that_left_is_passed_over() -> None:
    slots = SlotQueue(1)
    slots.try_acquire()
    first, second = slots.enqueue(under_way(1)), slots.enqueue(FRESH)
    slots.cancel(first)
    assert slots.waiting == 1
    assert slots.release() == [second]


def test_tickets_that_left_do_not_pile_up_behind_one_that_waits_for_ever() -> None:
    slots = SlotQueue(1)
    slots.try_acquire()
    patient = slots.enqueue(under_way(0))
    for _ in range(10_000):
        slots.cancel(slots.enqueue(FRESH))
        assert len(slots._order) <= 2 * slots.waiting + 64
    assert slots.release() == [patient]


def test_the_order_survives_the_leaving_of_many() -> None:
    slots = SlotQueue(1)
    slots.try_acquire()
    ranks = [under_way(turns_left=(7 * number) % 200) for number in range(200)]
    tickets = [slots.enqueue(rank) for rank in ranks]
    staying = [number for number in range(200) if number % 20 == 0]
    for number in range(200):
        if number not in staying:
            slots.cancel(tickets[number])
    granted = [ticket for _ in staying for ticket in slots.release()]
    assert granted == [tickets[number] for number in sorted(staying, key=lambda number: ranks[number])]


def test_an_agent_passed_over_for_many_rounds_is_next_whatever_its_rank() -> None:
    slots = SlotQueue(2)
    slots.try_acquire(), slots.try_acquire()
    fresh = slots.enqueue(FRESH)
    for _ in range(2 * MAX_ROUNDS_PASSED_OVER):
        ticket = slots.enqueue(under_way(0))
        assert slots.release() == [ticket]
    slots.enqueue(under_way(0))
    assert slots.release() == [fresh]


def test_of_those_that_were_passed_over_the_one_that_came_first_goes_first() -> None:
    slots = SlotQueue(1)
    slots.try_acquire()
    patient = [slots.enqueue(FRESH), slots.enqueue(under_way(9)), slots.enqueue(under_way(8))]
    for _ in range(MAX_ROUNDS_PASSED_OVER):
        slots.enqueue(under_way(0))
        slots.release()
    for _ in patient:
        slots.enqueue(under_way(0))
    assert [slots.release() for _ in patient] == [[ticket] for ticket in patient]


def test_one_that_was_granted_for_its_age_is_not_granted_again_for_its_rank() -> None:
    slots = SlotQueue(1)
    slots.try_acquire()
    patient = slots.enqueue(FRESH)
    others = [slots.enqueue(under_way(0)) for _ in range(MAX_ROUNDS_PASSED_OVER + 1)]
    granted = [ticket for _ in range(MAX_ROUNDS_PASSED_OVER + 2) for ticket in slots.release()]
    assert granted == [*others[:MAX_ROUNDS_PASSED_OVER], patient, others[MAX_ROUNDS_PASSED_OVER]]
    assert slots.waiting == 0


def test_one_that_left_is_not_granted_for_its_age() -> None:
    slots = SlotQueue(1)
    slots.try_acquire()
    leaving, staying = slots.enqueue(FRESH), slots.enqueue(FRESH)
    for _ in range(MAX_ROUNDS_PASSED_OVER):
        slots.enqueue(under_way(0))
        slots.release()
    slots.cancel(leaving)
    slots.enqueue(under_way(0))
    assert slots.release() == [staying]


def test_a_pause_makes_nobody_older() -> None:
    slots = SlotQueue(1)
    slots.try_acquire()
    slots.enqueue(FRESH)
    returning = slots.enqueue(under_way(0))
    assert slots.resize(0) == slots.release() == []
    assert slots.resize(1) == [returning]


def test_tickets_that_were_granted_for_their_age_do_not_pile_up() -> None:
    slots = SlotQueue(1)
    slots.try_acquire()
    for _ in range(3 * MAX_ROUNDS_PASSED_OVER):
        slots.enqueue(FRESH)
    for _ in range(2_000):
        slots.enqueue(FRESH)
        slots.enqueue(under_way(0))
        assert slots.release() != []
        slots.cancel(next(reversed(slots._waiting)))
        assert len(slots._order) <= 2 * slots.waiting + 64
        assert len(slots._arrivals) <= 2 * slots.waiting + 64 + MAX_ROUNDS_PASSED_OVER * slots.limit


def test_a_long_line_that_is_served_by_age_does_not_pile_up() -> None:
    slots = SlotQueue(1)
    slots.try_acquire()
    for number in range(10 * MAX_ROUNDS_PASSED_OVER):
        slots.enqueue(under_way(number % 7))
    for number in range(5_000):
        slots.enqueue(under_way(number % 7))
        assert len(slots.release()) == 1
        assert len(slots._order) <= 2 * slots.waiting + 64
        assert len(slots._arrivals) <= 2 * slots.waiting + 64 + MAX_ROUNDS_PASSED_OVER * slots.limit


def test_ten_thousand_that_wait_cost_about_as_much_each_as_a_hundred() -> None:
    """The comparisons of ranks, counted: they may grow with the logarithm."""

    def comparisons(waiting: int) -> float:
        Counted.compared = 0
        slots = SlotQueue(4)
        for _ in range(4):
            slots.try_acquire()
        for number in range(waiting):
            slots.enqueue(Counted(False, (7 * number) % 31, number))
        for number in range(waiting):
            slots.enqueue(Counted(False, (11 * number) % 31, number))
            slots.release()
        while slots.waiting:
            slots.release()
        return Counted.compared / waiting

    assert comparisons(10_000) < 4 * comparisons(100)


class Counted(Priority):
    compared = 0

    def __lt__(self, other: object) -> bool:
        Counted.compared += 1
        assert isinstance(other, Priority)
        return (self.turns_left, self.since) < (other.turns_left, other.since)
