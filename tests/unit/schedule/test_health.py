"""When failures are the backend's, and not those of a few agents."""

from dataclasses import dataclass, field

import pytest

from batch_agent import BackendError, ErrorKind
from batch_agent.core.errors import WebPage
from batch_agent.schedule.health import REJECTED_AGENTS, Health, PauseAll, RetryAgent, StopRun, Verdict

GONE = BackendError(ErrorKind.UNAVAILABLE, "Cannot connect")
PAGE = WebPage(ErrorKind.SERVER, "a web page instead of an answer", status=200)
DENIED = BackendError(ErrorKind.AUTH, "no access", status=403)


@dataclass
class Run:
    """A health, and short ways to let requests fail and be answered, one after the other."""

    health: Health = field(default_factory=lambda: Health(15))

    def fails(self, error: BackendError, at: float, agent: str) -> Verdict:
        return self.health.failed(self.health.sent(at), agent, error, at)

    def fail(self, error: BackendError, *times: float, agents: str = "abcdefghijklmnopqrstuvwxyz") -> list[Verdict]:
        """Each of another agent."""
        return [self.fails(error, at, agents[number]) for number, at in enumerate(times)]

    def answers(self, at: float = 0.0) -> None:
        self.health.succeeded(self.health.sent(at))


def test_a_backend_that_three_agents_find_gone_is_waited_for_and_then_given_up() -> None:
    *held, last = Run().fail(GONE, 0.0, 0.1, 0.2, 4.0, 14.9, 15.0)
    assert held == [RetryAgent(), RetryAgent(), PauseAll(0.5), PauseAll(2.0), PauseAll(5.0)]
    assert isinstance(last, StopRun)
    assert "is unavailable" in last.reason
    assert "Cannot connect" in last.reason


def test_the_reason_of_a_stop_has_the_first_failure_which_may_say_why_the_server_is_gone() -> None:
    run = Run()
    run.answers()
    run.fail(BackendError(ErrorKind.UNAVAILABLE, "the engine has died", status=500), 1.0, 1.1, 1.2)
    *_, last = run.fail(GONE, 3.0, 17.0)
    assert isinstance(last, StopRun)
    assert "Cannot connect The first failure was: the engine has died" in last.reason


def test_a_backend_that_responds_with_web_pages_and_has_answered_nothing_is_given_up_at_the_third() -> None:
    run = Run()
    assert [run.fails(PAGE, at, "a") for at in (0.0, 0.4)] == [RetryAgent()] * 2
    assert isinstance(run.fails(PAGE, 1.2, "a"), StopRun)


def test_web_pages_among_answers_concern_only_their_agents() -> None:
    run = Run()
    run.answers()
    assert all(isinstance(verdict, RetryAgent) for verdict in run.fail(PAGE, 1.0, 1.1, 1.2, 1.3))
    waiting = Health(15)
    early = waiting.sent(0.0)
    pages = [waiting.failed(waiting.sent(0.1), "a", PAGE, 0.2) for _ in range(5)]
    assert all(isinstance(verdict, RetryAgent) for verdict in pages)
    waiting.succeeded(early)


def test_one_agent_that_fails_again_and_again_is_alone() -> None:
    run = Run()
    assert [run.fails(GONE, float(at), "a") for at in range(40)] == [RetryAgent()] * 40


def test_an_answer_starts_the_patience_anew() -> None:
    run = Run()
    run.fail(GONE, 0.0, 1.0, 2.0)
    run.answers()
    assert run.fail(GONE, 16.0, 17.0, 18.0) == [RetryAgent(3), RetryAgent(3), PauseAll(1.0)]


def test_without_patience_three_agents_are_enough() -> None:
    assert isinstance(Run(Health(0)).fail(GONE, 0.0, 0.0, 0.0)[-1], StopRun)


def test_nobody_is_held_while_a_request_that_was_sent_before_may_still_be_answered() -> None:
    run = Run()
    slow = run.health.sent(0.0)
    assert run.fail(GONE, 0.0, 1.0, 2.0, 100.0) == [RetryAgent(10)] * 4
    run.health.abandoned(slow)
    assert isinstance(run.fails(GONE, 100.0, "z"), StopRun)


def test_a_request_that_was_sent_into_the_trouble_is_no_sign_of_life() -> None:
    run = Run()
    run.fail(GONE, 1.0, 1.1)
    run.health.sent(1.2)
    assert run.fails(GONE, 1.3, "z") == PauseAll(0.5)


def test_an_error_about_the_request_itself_shows_that_the_server_reads_them() -> None:
    run = Run()
    run.fail(GONE, 0.0, 1.0)
    assert run.fails(BackendError(ErrorKind.BAD_REQUEST, "no"), 2.0, "c") == RetryAgent()
    assert run.fail(GONE, 20.0, 21.0) == [RetryAgent(), RetryAgent()]


def test_a_broken_connection_in_between_is_no_sign_of_life() -> None:
    run = Run()
    run.fail(GONE, 0.0, 1.0, 2.0)
    assert run.fails(BackendError(ErrorKind.CONNECTION, "reset"), 3.0, "d") == RetryAgent()
    assert isinstance(run.fails(GONE, 15.0, "e"), StopRun)


def test_a_gateway_that_says_when_to_come_back_is_waited_for_by_its_own_clock() -> None:
    busy = BackendError(ErrorKind.UNAVAILABLE, "busy", retry_after=3.0, status=503)
    assert Run().fail(busy, 0.0, 0.1, 0.2) == [RetryAgent()] * 3


def test_a_wrong_key_is_certain_at_the_first_request() -> None:
    [verdict] = Run().fail(BackendError(ErrorKind.AUTH, "bad key", status=401), 0.0)
    assert isinstance(verdict, StopRun)
    assert "bad key" in verdict.reason


def test_a_key_that_is_revoked_in_mid_run_stops_it_soon() -> None:
    run = Run()
    run.answers()
    first, second, third = run.fail(BackendError(ErrorKind.AUTH, "revoked", status=401), 0.0, 0.0, 0.0)
    assert (first, second) == (RetryAgent(), RetryAgent())
    assert isinstance(third, StopRun)


@pytest.mark.parametrize("kind", [ErrorKind.AUTH, ErrorKind.NOT_FOUND])
def test_some_prompts_that_are_refused_do_not_stop_the_others(kind: ErrorKind) -> None:
    run = Run()
    for _ in range(3):
        assert run.fail(BackendError(kind, "no", status=403), *[0.0] * 9) == [RetryAgent()] * 9
        run.answers()


def test_ten_agents_that_are_refused_with_nobody_answered_stop_the_run() -> None:
    run = Run()
    run.answers()
    *alone, last = run.fail(DENIED, *[0.0] * 10)
    assert alone == [RetryAgent()] * 9
    assert isinstance(last, StopRun)


@pytest.mark.parametrize("kind", [ErrorKind.SERVER, ErrorKind.CONNECTION])
def test_a_server_that_fails_at_everything_is_given_up_when_many_have_met_it(kind: ErrorKind) -> None:
    *alone, last = Run().fail(BackendError(kind, "boom"), *[float(at) for at in range(20)])
    assert alone == [RetryAgent()] * 19
    assert isinstance(last, StopRun)


@pytest.mark.parametrize("kind", [ErrorKind.SERVER, ErrorKind.CONNECTION, ErrorKind.RATE_LIMITED])
def test_a_failure_among_answers_is_told_to_be_a_lone_one(kind: ErrorKind) -> None:
    run = Run()
    for number in range(100):
        assert run.fails(BackendError(kind, "boom"), 0.0, str(number)) == RetryAgent(others_succeed=number > 0)
        for _ in range(4):
            run.answers()


def test_where_another_try_helps_as_a_rule_agents_may_try_more_often() -> None:
    run, boom = Run(), BackendError(ErrorKind.SERVER, "boom")
    run.answers()
    run.health.retried(helped=True)
    assert run.fails(boom, 0.0, "a") == RetryAgent(3, others_succeed=True)
    run.health.retried(helped=False)
    assert run.fails(boom, 0.0, "a") == RetryAgent(1, others_succeed=True)


def test_another_try_that_took_minutes_is_not_made_more_often() -> None:
    run = Run()
    run.answers()
    run.health.retried(helped=True)
    assert run.fails(BackendError(ErrorKind.TURN_TIMEOUT, "no answer in 300 s"), 0.0, "a") == RetryAgent(
        1, others_succeed=True
    )


def test_a_server_that_hangs_is_given_up_after_two_rounds_of_what_was_under_way() -> None:
    run, slow = Run(), BackendError(ErrorKind.TURN_TIMEOUT, "no answer in 300 s")
    verdicts: list[Verdict] = []
    for number in range(2):
        under_way = [run.health.sent(300.0 * number + 1) for _ in range(8)]
        verdicts += [run.health.failed(each, str(each), slow, 300.0 * (number + 1) + 1) for each in under_way]
    assert verdicts[:-1] == [RetryAgent()] * 15
    assert isinstance(verdicts[-1], StopRun)
    assert "hangs" in verdicts[-1].reason


REJECTED = BackendError(ErrorKind.BAD_REQUEST, "no such option", status=400)


def rejected(run: Run, agents: range, kinds: tuple[BackendError, ...] = (REJECTED,)) -> list[Verdict]:
    return [run.fails(kinds[number % len(kinds)], float(number), f"{number}") for number in agents]


def test_fifty_agents_that_are_rejected_with_nobody_answered_stop_the_run_and_say_what_to_do() -> None:
    *before, last = rejected(Run(Health(15, REJECTED_AGENTS)), range(50))
    assert before == [RetryAgent()] * 49
    assert isinstance(last, StopRun)
    assert "50 agents were rejected, and none was answered. no such option" in last.reason
    assert "retry_failed=False" in last.reason


def test_rejections_of_several_kinds_count_together() -> None:
    other = BackendError(ErrorKind.NOT_FOUND, "no such path", status=404)
    assert isinstance(rejected(Run(Health(15, REJECTED_AGENTS)), range(50), (REJECTED, other))[-1], StopRun)


def test_bad_prompts_never_stop_a_run_of_which_one_was_answered() -> None:
    run = Run(Health(15, REJECTED_AGENTS))
    rejected(run, range(49))
    run.answers()
    assert rejected(run, range(49, 500)) == [RetryAgent(others_succeed=False)] * 451


def test_bad_prompts_that_are_left_of_an_earlier_run_do_not_stop_the_next() -> None:
    run = Run(Health(15, REJECTED_AGENTS))
    run.health.answered_before()
    assert rejected(run, range(500)) == [RetryAgent()] * 500


def test_rejections_do_not_stop_a_run_while_a_request_from_before_may_be_answered() -> None:
    run = Run(Health(15, REJECTED_AGENTS))
    slow = run.health.sent(0.0)
    assert rejected(run, range(100)) == [RetryAgent()] * 100
    run.health.abandoned(slow)
    assert isinstance(run.fails(REJECTED, 100.0, "z"), StopRun)


def test_one_agent_that_is_rejected_again_and_again_does_not_stop_a_run() -> None:
    run = Run(Health(15, REJECTED_AGENTS))
    assert [run.fails(REJECTED, 0.0, "a") for _ in range(100)] == [RetryAgent()] * 100


def test_rejections_of_requests_that_are_unlike_each_other_stop_nothing() -> None:
    assert rejected(Run(), range(500)) == [RetryAgent()] * 500


REVOKED = BackendError(ErrorKind.AUTH, "the key was revoked", status=401)
AGENTS = "abcdefghijklmnopqrstuvwxyz"


def test_a_key_that_is_revoked_in_mid_run_stops_it_when_the_requests_sent_before_have_ended() -> None:
    run = Run()
    run.answers()
    earlier = run.health.sent(1.0)
    verdicts = run.fail(REVOKED, *[2.0] * 11)
    assert verdicts == [RetryAgent()] * 10 + [PauseAll(0.5)]
    run.health.succeeded(earlier)  # it was accepted before the key was revoked
    last = run.fails(REVOKED, 3.0, "z")
    assert isinstance(last, StopRun)
    assert "the key was revoked" in last.reason


def test_a_key_that_is_accepted_again_is_not_held_against_the_backend() -> None:
    run = Run()
    run.answers()
    run.health.sent(1.0)
    assert isinstance(run.fail(REVOKED, *[2.0] * 11)[-1], PauseAll)
    run.answers(3.0)
    assert isinstance(run.fails(REVOKED, 4.0, "z"), RetryAgent)


def test_single_refusals_of_a_key_that_arrive_before_slow_answers_do_not_stop_a_run() -> None:
    run = Run()
    run.answers()
    run.health.sent(1.0)
    for agent in AGENTS:  # each refusal is followed by a request that is accepted, and takes its time
        assert isinstance(run.fails(REVOKED, 2.0, agent), RetryAgent)
        run.health.sent(2.0)


def test_a_firewall_that_refuses_prompts_does_not_stop_a_run_that_has_requests_in_flight() -> None:
    run = Run()
    run.answers()
    run.health.sent(1.0)
    assert all(isinstance(verdict, RetryAgent) for verdict in run.fail(DENIED, *[2.0] * 26))
