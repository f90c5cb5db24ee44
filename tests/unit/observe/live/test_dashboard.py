"""The dashboard as lines: what is on it, and what is left out where there is little room."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.support.event_list import state_after

from batch_agent.core.errors import ErrorKind
from batch_agent.core.events import (
    AgentFinished,
    AgentStarted,
    CallsEnded,
    CallsStarted,
    Event,
    FlowStarted,
    LoadSampled,
    Notice,
    Paused,
    RequestRetried,
    RunStarted,
    StageEvent,
    TurnEnded,
    TurnStarted,
)
from batch_agent.core.requests import Usage
from batch_agent.core.results import AgentError, AgentResult, CallRecord, Timing
from batch_agent.observe.live.dashboard import render
from batch_agent.observe.live.state import LiveState

FULL: list[Event] = [
    RunStarted("vllm", "Qwen/Qwen3-32B", 8, 100, prices=(1.0, 0.1, 2.0)),
    LoadSampled("vllm", 6, 8, 2, 12, 40_000, 100_000, 0.39, 6, 1),
    *(AgentStarted(key, index) for index, key in enumerate("abcde")),
    TurnStarted("a", 1),
    TurnStarted("b", 1),
    RequestRetried("b", ErrorKind.RATE_LIMITED, "HTTP 429", 1.0),
    TurnStarted("c", 1),
    TurnEnded("c", 1, Usage(20_000, 15_000, 500), "calls", 0.0, 1.0, None, 1),
    CallsStarted("c", 1, ("look", "fetch")),
    CallsEnded("c", 1, (CallRecord("look", "", True, 0.5), CallRecord("look", "", True, 0.5, "cached")), 0.5),
    CallsEnded("c", 1, (CallRecord("fetch", "", False, 1.5),), 1.5),
    CallsStarted("c", 2, ("look",)),
    AgentFinished(AgentResult(3, "d", output={"ok": True}, text='{"ok": true}', timing=Timing(total=4.2)), False),
    AgentFinished(AgentResult(4, "e", error=AgentError(ErrorKind.MAX_TURNS, "no answer in 4 turns")), False),
]


def lines(state: LiveState, width: int = 120, height: int = 40) -> list[str]:
    return [line.plain.rstrip() for line in render(state, 65.0, width, height)]


def test_the_dashboard_shows_all_key_figures() -> None:
    state = state_after(*FULL)
    state.tick(60.0)
    state.emit(AgentFinished(AgentResult(5, "f", output="an answer\nof two lines"), False))
    state.tick(61.0)
    title, bar, *rest = lines(state)
    assert title.startswith("Qwen/Qwen3-32B on vllm ")
    assert title.endswith("  1 min 05 s  1 min 37 s left")
    assert bar.startswith("━")
    assert bar.endswith("─  3 of 100  3%  1.0/s")
    assert rest == [
        "agents     1 generating  1 in tools  1 waiting  1 failed  2 answered  94 not started",
        "slots      ━━━━━━━━━━━━━━━─────  6 of 8 in use  2 waiting  server: 6 running, 1 queued",
        "KV cache   ━━━━━━━━────────────  12 resident agents  40.0k of 100k tokens  server: 39%",
        "tokens     20.0k in  75% cached  500 out  $0.0075  0/s in, 0/s out",
        "tool calls 3  33% reused  2 executed  1 failed  1 cached",
        "           look  2  50% reused  1 executed  1 cached  0.50 s mean",
        "           fetch  1  1 executed  1 failed  1.50 s mean",
        "retries    1  rate_limited 1",
        "errors     1  max_turns  no answer in 4 turns",
        "latest     5  answered   0 s  an answer of two lines",
        "           4  failed   0 s  max_turns: no answer in 4 turns",
        '           3  answered   4 s  {"ok":true}',
    ]


def test_the_dashboard_says_why_nothing_is_answered_until_something_is() -> None:
    refused = RequestRetried("a", ErrorKind.RATE_LIMITED, "HTTP 429: over\nquota", 1.0)
    state = state_after(RunStarted("vllm", "m", 8, 3), AgentStarted("a", 0), refused)
    assert "retries    1  rate_limited 1  HTTP 429: over quota" in lines(state)
    state.emit(TurnEnded("a", 0, Usage(10, 0, 5), "stop", 0.0, 1.0, None, 2))
    assert "retries    1  rate_limited 1" in lines(state)


def test_more_in_flight_than_a_lowered_limit_is_not_a_share_of_it() -> None:
    """A lower limit takes effect as requests end."""
    state = state_after(RunStarted("vllm", "m", 128, 100), LoadSampled("vllm", 95, 47, 3, 12, 130_000, 100_000))
    text = "\n".join(lines(state))
    assert "95 in flight, limit lowered to 47  3 waiting" in text
    assert "12 resident agents  130k tokens, 100k fit" in text
    assert " of 47" not in text
    state.emit(LoadSampled("vllm", 47, 47, 3))
    assert "47 of 47 in use" in "\n".join(lines(state))


def test_in_a_small_terminal_the_least_important_lines_are_left_out() -> None:
    state = state_after(*FULL, Paused(3.0, "rate limited"))
    labels = [[line.split(" ")[0] for line in lines(state, height=height)[2:]] for height in (3, 6, 8, 10)]
    assert labels == [
        ["paused"],
        ["paused", "agents", "slots", "tokens"],
        ["paused", "agents", "slots", "tokens", "tool", "errors"],
        ["paused", "agents", "slots", "KV", "tokens", "tool", "retries", "errors"],
    ]
    assert lines(state, width=40)[0] == "Qwen/Qwen3-32B on vllm        1 min 05 s"
    assert lines(state, width=40)[3] == "agents     1 generating  1 in tools"


def test_each_stage_of_a_flow_says_when_it_will_be_done() -> None:
    state = state_after(FlowStarted(("review", "report")), StageEvent("review", RunStarted("vllm", "m", 8, 30)))
    for second in range(11):
        state.tick(second)
        state.emit(StageEvent("review", AgentFinished(AgentResult(second, str(second)), False)))
    assert lines(state)[1].endswith("  11 of 30  37%  1.0/s  19 s left")


def test_a_long_name_leaves_room_for_the_time() -> None:
    state = state_after(RunStarted("vllm", "a-model-with-a-name-that-is-very-long-indeed", 8, 10))
    assert lines(state, width=40)[0] == "a-model-with-a-name-that-is…  1 min 05 s"


@pytest.mark.parametrize("events", [[], [Notice("Loading \x1b[31mthe model ...")]])
def test_before_the_run_starts_the_dashboard_shows_only_its_notice(events: list[Event]) -> None:
    [line] = lines(state_after(*events))
    assert line == ("Loading ␛[31mthe model ..." if events else "Connecting ...")


def test_a_notice_that_says_more_than_to_wait_stays() -> None:
    state = state_after(Notice("Starting the model ..."), *FULL)
    assert not any(line.startswith("notice") for line in lines(state))
    state.emit(Notice("http://b is down, and the others do its work: gone"))
    assert "notice     http://b is down, and the others do its work: gone" in lines(state)


STEERING = "\x1b]0;owned\x07 \x1b[2J\r\n\tx \x9b31m \u202eevil \ud800 \u2028 🙂 汉字"


def test_model_output_on_the_dashboard_has_no_escape_sequences() -> None:
    state = state_after(
        FlowStarted((STEERING,)),
        StageEvent(STEERING, RunStarted(STEERING, STEERING, 8, 10)),
        StageEvent(STEERING, AgentStarted("a", 0)),
        StageEvent(STEERING, CallsEnded("a", 1, (CallRecord(STEERING, "", False, 0.1),), 0.1)),
        StageEvent(STEERING, AgentFinished(AgentResult(0, "a", output=STEERING), False)),
        StageEvent(STEERING, AgentFinished(AgentResult(1, "b", error=AgentError(ErrorKind.SERVER, STEERING)), False)),
        LoadSampled(STEERING, 1, 8),
        LoadSampled("other", 1, 8),
        Paused(1.0, STEERING),
    )
    shown = lines(state, width=200)
    assert sum("汉字" in line for line in shown) >= 6
    assert not {unicodedata.category(each) for each in "".join(shown)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


TEXTS = st.text(max_size=60) | st.sampled_from([STEERING, "x" * 500, "汉字" * 200, ""])
KEYS = st.sampled_from(["a", "b", "c"])
USAGES = st.builds(Usage, st.integers(0, 10**9), st.integers(0, 10**8), st.integers(0, 10**8))
NUMBERS = st.integers(0, 10**7)
PRICES = st.none() | st.just((1.0, 0.1, 2.0))
ERRORS = st.builds(AgentError, st.sampled_from(list(ErrorKind)), TEXTS)
RESULTS = st.builds(
    AgentResult, NUMBERS, KEYS, output=TEXTS, error=st.none() | ERRORS, usage=USAGES,
    timing=st.builds(Timing, total=st.floats(0, 1e6)),
)  # fmt: skip
IN_RUN = st.one_of(
    st.builds(RunStarted, TEXTS, TEXTS, NUMBERS, st.none() | NUMBERS, st.just(()), PRICES),
    st.builds(AgentStarted, KEYS, NUMBERS),
    st.builds(TurnStarted, KEYS, st.just(1)),
    st.builds(TurnEnded, KEYS, st.just(1), USAGES, st.just("stop"), st.just(0), st.just(1), st.none(), st.just(1)),
    st.builds(CallsStarted, KEYS, st.just(1), st.just(("look",))),
    st.builds(CallsEnded, KEYS, st.just(1), st.tuples(st.builds(CallRecord, TEXTS, TEXTS, st.booleans(), st.just(1))),
              st.just(1)),
    st.builds(RequestRetried, KEYS, st.sampled_from(list(ErrorKind)), TEXTS, st.just(1.0)),
    st.builds(AgentFinished, RESULTS, st.booleans()),
)  # fmt: skip
OF_ALL = st.one_of(
    st.builds(LoadSampled, TEXTS, *[NUMBERS] * 3, *[st.none() | NUMBERS] * 3, st.none() | st.floats(0, 1)),
    st.builds(Paused, st.just(1.0), TEXTS),
    st.builds(Notice, TEXTS),
)
PLAIN = st.lists(IN_RUN | OF_ALL, max_size=40)
STAGES = ("review", STEERING, "a stage with a very long name")
FLOWS = st.lists(st.builds(StageEvent, st.sampled_from(STAGES), IN_RUN) | OF_ALL, max_size=40).map(
    lambda events: [FlowStarted(STAGES), *events]
)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(PLAIN | FLOWS, st.integers(1, 220), st.integers(1, 60), st.lists(st.floats(0.01, 100), max_size=3))
def test_the_dashboard_never_exceeds_the_terminal_size(
    events: list[Event], width: int, height: int, ticks: list[float]
) -> None:
    state = LiveState()
    for event in events:
        state.emit(event)
    for at, seconds in enumerate(ticks):
        state.tick(at * 100 + seconds)
    shown = render(state, 65.0, width, height)
    assert 1 <= len(shown) <= height
    for line in shown:
        assert cell_len(line.plain) <= width
        assert not set(line.plain) & {"\n", "\r", "\x1b"}
