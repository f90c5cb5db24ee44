"""Endpoint pool: routing, failover and notices."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.support.sim_hosts import CHAT, STEPS, Host, Odd, refuse, soon, up

from batch_agent import BackendError, BatchAgent, ErrorKind, RunStopped, SpecError, Tool
from batch_agent.backends import startup_wait
from batch_agent.backends.connect import connect
from batch_agent.backends.endpoints import pool_member as fleet_member
from batch_agent.backends.endpoints.endpoint_pool import EndpointPool, PromptPrefixes
from batch_agent.backends.endpoints.pool_member import PoolEndpoint
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.backend import Backend, Traits
from batch_agent.core.requests import Request, Sampling, TextDelta
from batch_agent.schedule.endpoints import circuit_breaker as standing
from batch_agent.schedule.endpoints import routing
from batch_agent.schedule.retry import Backoff
from batch_agent.sim import Script, SimConfig
from batch_agent.sim.http import ClientConnection
from batch_agent.testing import ScriptedBackend
from batch_agent.testing import say as reply


@pytest.fixture(autouse=True)
def short_ejections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "_EJECTION", Backoff(0.1, 60.0))


@asynccontextmanager
async def fleet_of(*hosts: Host, said: list[str] | None = None) -> AsyncIterator[EndpointPool]:
    urls = [host.url for host in hosts]
    backend = await connect(urls, None, uses_tools=False, notify=(said if said is not None else []).append)
    assert isinstance(backend, EndpointPool)
    try:
        yield backend
    finally:
        await backend.aclose()


async def say(fleet: EndpointPool, text: str = "Hi", agent: str = "", *, shared: int = 0, stream: bool = False) -> str:
    message = User(text, shared=shared) if shared else User(text)
    request = Request(Prompt(""), (message,), fleet.traits.model, Sampling(max_tokens=64), agent=agent, stream=stream)
    async with fleet.stream(request) as deltas:
        return "".join([delta.text async for delta in deltas if isinstance(delta, TextDelta)])


def answering(status: int, extra: bytes = b"") -> Odd:
    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        return path == CHAT and refuse(connection, status, "no", extra)

    return odd


def reset(path: str, body: Any, connection: ClientConnection) -> bool:
    if path == CHAT:
        connection.reset()
    return path == CHAT


@pytest.mark.parametrize("odd", [answering(500), answering(503), answering(429), answering(401), answering(404), reset])
async def test_a_request_that_fails_on_one_endpoint_succeeds_on_another(odd: Odd) -> None:
    hosts = Host(odd=odd), Host()
    async with up(*hosts), fleet_of(*hosts) as fleet:
        for number in range(12):
            assert await say(fleet, f"{number}")
        assert [fleet.routing.requests(place) for place in (0, 1)] == [0, 0]


@pytest.mark.parametrize("extra", [b"", b"Retry-After: 1\r\n"])
@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
async def test_an_endpoint_that_fails_its_probe_is_ejected_at_once(
    status: int, extra: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup_wait, "_MAX_ATTEMPTS", 1)
    monkeypatch.setattr(standing, "_EJECTION", Backoff(1000.0, 1000.0))
    bad, good = Host(odd=answering(status, extra)), Host()
    async with up(bad, good):
        fleet = await connect([bad.url, good.url], None, uses_tools=True, notify=list[str]().append)
        assert isinstance(fleet, EndpointPool)
        trials = bad.requests()
        for number in range(20):
            assert await say(fleet, f"{number}")
        await fleet.aclose()
        assert bad.requests() == trials == 1


async def test_an_endpoint_that_hangs_during_its_probe_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_member, "START_TIMEOUT", 0.1)
    monkeypatch.setattr(fleet_member, "OPEN_TIMEOUT", 0.1)
    is_stuck, said = True, list[str]()

    def hang(path: str, body: Any, connection: ClientConnection) -> bool:
        return path == CHAT and is_stuck

    stuck, good = Host(odd=hang), Host()
    async with up(stuck, good):
        fleet = await connect([stuck.url, good.url], None, uses_tools=True, notify=said.append)
        assert isinstance(fleet, EndpointPool)
        assert said == [
            f"{stuck.url} cannot be used; its requests go to the other endpoints: No response within 0.1 s."
        ]
        for number in range(8):  # those that try it again are answered too
            assert await say(fleet, f"{number}")
            await asyncio.sleep(0.05)
        monkeypatch.setattr(fleet_member, "OPEN_TIMEOUT", 60.0)
        is_stuck = False
        async with asyncio.timeout(60):
            while said[-1] != f"{stuck.url} is back up.":
                assert await say(fleet)
                await asyncio.sleep(0.01)
        await fleet.aclose()


async def test_no_request_waits_for_an_endpoint_that_hangs_while_another_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_member, "START_TIMEOUT", 0.1)
    monkeypatch.setattr(standing, "_EJECTION", Backoff(0.0, 0.0))
    stuck, good = Host(odd=lambda path, body, connection: path == CHAT), Host()
    async with up(stuck, good):
        fleet = await connect([stuck.url, good.url], None, uses_tools=True, notify=list[str]().append)
        assert isinstance(fleet, EndpointPool)
        monkeypatch.setattr(fleet_member, "OPEN_TIMEOUT", 1000.0)
        async with asyncio.timeout(60):
            for number in range(20):
                assert await say(fleet, f"{number}")
            await soon(lambda: stuck.requests() == 2)  # at the start, and once since
            await fleet.aclose()
        await soon(lambda: not stuck.connections)


TRAITS = Traits("test", "m", native_tools=True, json_schema=True, json_schema_with_tools=True, inflight=4)


async def test_requests_that_wait_for_an_endpoint_to_open_share_its_failure() -> None:
    attempts, may_fail = list[str](), asyncio.Event()

    async def open_it(url: str) -> Backend:
        attempts.append(url)
        await may_fail.wait()
        raise BackendError(ErrorKind.SERVER, "no", status=500)

    member = PoolEndpoint("http://there", open_it, None)
    waiting = [asyncio.create_task(member.get_backend(TRAITS)) for _ in range(10)]
    await soon(lambda: bool(attempts))
    may_fail.set()
    for each in waiting:
        with pytest.raises(BackendError, match="no"):
            await each
    assert len(attempts) == 1
    with pytest.raises(BackendError, match="no"):  # it may be there by now
        await member.get_backend(TRAITS)
    assert len(attempts) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_request_that_two_proven_endpoints_reject_is_at_fault_itself(status: int) -> None:
    def odd(path: str, body: Any, connection: ClientConnection) -> bool:
        return path == CHAT and "bad" in str(body) and refuse(connection, status, "no")

    hosts, said = [Host(odd=odd) for _ in range(3)], list[str]()
    async with up(*hosts), fleet_of(*hosts, said=said) as fleet:
        while not all(host.requests() for host in hosts):
            await say(fleet)
        answered = sum(host.requests() for host in hosts)
        with pytest.raises(BackendError, match=f"HTTP {status} from"):
            await say(fleet, "bad", agent="1")
        assert sum(host.requests() for host in hosts) == answered + 2
        assert len(fleet.routing.available(asyncio.get_running_loop().time())) == 3
    assert said == []


@pytest.mark.parametrize(("status", "words"), [(400, "none has answered another request"), (404, "HTTP 404 from")])
async def test_endpoints_that_have_answered_nothing_are_all_asked_before_a_request_is_at_fault(
    status: int, words: str
) -> None:
    hosts, said = [Host(odd=answering(status)) for _ in range(3)], list[str]()
    async with up(*hosts), fleet_of(*hosts, said=said) as fleet:
        for number in range(6):
            with pytest.raises(BackendError, match=f"HTTP {status} from") as raised:
                await say(fleet, agent=f"{number}")
        assert [host.requests() for host in hosts] == [6, 6, 6]
        assert len(fleet.routing.available(asyncio.get_running_loop().time())) == 3
    assert words in str(raised.value)
    assert said == []


async def test_a_request_that_crashes_engines_does_not_reach_all_of_them() -> None:
    crashed = list[int]()

    def crashing(number: int) -> Odd:
        def odd(path: str, body: Any, connection: ClientConnection) -> bool:
            if path != CHAT or "bad" not in str(body):
                return False
            crashed.append(number)
            connection.reset()
            return True

        return odd

    hosts = [Host(odd=crashing(number)) for number in range(8)]
    async with up(*hosts), fleet_of(*hosts) as fleet:
        while not all(host.requests() for host in hosts):
            await say(fleet)
        for _ in range(3):
            with pytest.raises(BackendError, match="3 endpoints that answer others failed with this request"):
                await say(fleet, "bad", agent="1")
        assert len(set(crashed)) == 3
        assert len(fleet.routing.available(asyncio.get_running_loop().time())) == 8


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_an_endpoint_that_rejects_what_another_accepts_is_ejected_with_a_notice(status: int) -> None:
    bad, good, said = Host(odd=answering(status)), Host(), list[str]()
    async with up(bad, good), fleet_of(bad, good, said=said) as fleet:
        for number in range(40):
            assert await say(fleet, f"{number}", f"{number}")
            if not fleet.routing.is_up(0):
                break
        else:
            raise AssertionError("it is still in")
    [words] = said
    assert words.startswith(
        f"{bad.url} rejects requests that other endpoints accept; its requests go to the other endpoints"
    )
    assert bad.requests() == 2


GONE = BackendError(ErrorKind.UNAVAILABLE, "gone")


async def test_an_answer_to_a_request_from_before_an_ejection_does_not_report_the_endpoint_as_up() -> None:
    hosts, said = (Host(), Host()), list[str]()
    async with up(*hosts), fleet_of(*hosts, said=said) as fleet:
        before = fleet.routing.sent(0, 1.0, 0.0)
        fleet.health.on_failure(fleet.routing.sent(0, 1.0, 0.0), 0, "a", GONE)
        fleet.health.on_success(before, 0, "b", 0.1)
        fleet.health.on_failure(
            fleet.routing.sent(0, 1.0, 0.0), 0, "c", BackendError(ErrorKind.BAD_REQUEST, "no", status=400)
        )
    assert said == [f"{hosts[0].url} is down; its requests go to the other endpoints: gone"]


async def test_endpoints_are_not_compared_when_all_of_them_reject() -> None:
    hosts, said = (Host(), Host()), list[str]()
    rejection = BackendError(ErrorKind.BAD_REQUEST, "no", status=400)
    async with up(*hosts), fleet_of(*hosts, said=said) as fleet:
        for index in range(2):
            for _ in range(2):
                fleet.health.record_failure(fleet.routing.sent(index, 1.0, 0.0), index, rejection, is_certain=True)
            fleet.health.mark_down(index, rejection)
    assert said == [
        f"{hosts[0].url} rejects requests; its requests go to the other endpoints: no",
        f"{hosts[1].url} rejects requests: no",
    ]


@pytest.mark.parametrize("endpoints", [1, 3])
async def test_a_run_stops_when_every_endpoint_rejects_everything(endpoints: int) -> None:
    hosts = [Host(odd=answering(400)) for _ in range(endpoints)]
    async with up(*hosts):
        with pytest.raises(RunStopped, match=r"rejects every request: .* none was answered"):
            await BatchAgent.run(
                task="{it}",
                inputs=[str(number) for number in range(1000)],
                backend=[host.url for host in hosts],
                max_inflight=8,
                progress=False,
            )
    assert sum(host.requests() for host in hosts) <= 60 * endpoints


async def test_a_rejection_does_not_bring_an_ejected_endpoint_back() -> None:
    bad, good = Host(odd=answering(400)), Host()
    async with up(bad, good), fleet_of(bad, good) as fleet, asyncio.timeout(60):
        while bad.requests() < 4:
            await say(fleet)
        assert not fleet.routing.is_up(0)


async def test_a_prompt_that_is_too_long_is_not_sent_to_another_endpoint() -> None:
    hosts = Host(), Host()
    async with up(*hosts), fleet_of(*hosts) as fleet:
        with pytest.raises(BackendError) as raised:
            await say(fleet, "word " * 20_000)
    assert raised.value.kind is ErrorKind.CONTEXT_OVERFLOW
    assert sum(host.requests() for host in hosts) == 1


@pytest.mark.parametrize(("status", "kind"), [(429, ErrorKind.RATE_LIMITED), (503, ErrorKind.UNAVAILABLE)])
async def test_the_error_lists_all_endpoints_when_none_accepts_the_request(status: int, kind: ErrorKind) -> None:
    hosts = Host(odd=answering(status, b"retry-after: 7\r\n")), Host(odd=answering(status, b"retry-after: 7\r\n"))
    async with up(*hosts), fleet_of(*hosts) as fleet:
        with pytest.raises(BackendError) as raised:
            await say(fleet)
    assert raised.value.kind is kind
    if kind is ErrorKind.RATE_LIMITED:
        assert raised.value.retry_after == 7
    else:
        assert all(host.url in str(raised.value) for host in hosts)


async def test_an_endpoint_that_goes_down_and_up_is_reported_once_each() -> None:
    hosts, said = (Host(), Host()), list[str]()
    async with up(*hosts), fleet_of(*hosts, said=said) as fleet:
        hosts[0].kill()
        async with asyncio.timeout(60):
            while not said:
                await say(fleet)
            await hosts[0].start()
            while len(said) < 2:
                await say(fleet)
        for _ in range(10):
            await say(fleet)
    assert len(said) == 2
    assert said[0].startswith(f"{hosts[0].url} is down; its requests go to the other endpoints")
    assert said[1] == f"{hosts[0].url} is back up."


async def test_an_endpoint_that_comes_back_with_another_model_is_not_used() -> None:
    there, away = Host(), Host(SimConfig(zero_latency=True, model="another"))
    async with up(away):
        pass
    async with up(there), fleet_of(there, away) as fleet, up(away):
        async with asyncio.timeout(60):
            while "'another', not 'sim'" not in fleet.members[1].last_error:
                assert await say(fleet)
    assert not away.requests()


async def test_an_agent_stays_on_its_endpoint_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_WAIT_RATIO", 1e9)  # however slow it looks while this machine is busy
    hosts, agents = [Host(STEPS) for _ in range(3)], "abcdefgh"
    async with up(*hosts), fleet_of(*hosts) as fleet:
        for turn in range(4):
            for agent in agents:
                await say(fleet, f"{agent} {turn}", agent)
        homes = {
            agent: {
                place
                for place, host in enumerate(hosts)
                for _, body in host.posts
                if body["messages"][0]["content"][0] == agent
            }
            for agent in agents
        }
        assert [len(places) for places in homes.values()] == [1] * len(agents)
        assert len(set.union(*homes.values())) > 1
        await fleet.leave("a")
        assert fleet.routing.home("a") is None


async def test_requests_with_the_same_prefix_share_an_endpoint_until_it_is_busy() -> None:
    hosts = [Host() for _ in range(3)]
    beginning = "The same words for all of them. " * 40
    async with up(*hosts), fleet_of(*hosts) as fleet:
        for number in range(12):
            await say(fleet, f"{beginning}{number}", shared=len(beginning))
    assert sorted(host.requests() for host in hosts) == [0, 0, 12]


def test_a_beginning_is_known_again_and_told_from_others_of_its_length() -> None:
    prefixes = PromptPrefixes()

    def of(text: str, shared: int, breaks: tuple[int, ...] = ()) -> tuple[int, ...]:
        return prefixes.of(Request(Prompt(""), (User(text, shared, breaks),), "m", Sampling()))

    one, other = of("Sum up: a", 8), of("Explain: b", 8)
    assert one != other
    assert of("Sum up: c", 8) == one
    assert of("Explain: d", 8) == other
    assert of("Sum up: a", 9) not in (one, other)
    assert of("Sum up: a", 0) == ()
    assert of("Sum up: <document> a", 18, (8,))[-1:] == one


async def test_agents_whose_prompts_begin_with_the_same_references_come_together() -> None:
    hosts = [Host() for _ in range(3)]
    lead, first, second = "The task. ", "<first document>" * 40, "<second document>" * 40
    read_one = User(f"{lead}{first}own", len(lead + first), (len(lead),))
    read_both = User(f"{lead}{first}{second}own", len(lead + first + second), (len(lead), len(lead + first)))

    async def ask(message: User, agent: str) -> None:
        request = Request(Prompt(""), (message,), fleet.traits.model, Sampling(max_tokens=64), agent=agent)
        async with fleet.stream(request) as deltas:
            async for _ in deltas:
                pass

    async with up(*hosts), fleet_of(*hosts) as fleet:
        for message in (User(f"{lead}own", len(lead)), read_one, read_both):
            for agent in "abcdef":
                await ask(message, agent)
    with_both = [sum(second in body["messages"][0]["content"] for _, body in host.posts) for host in hosts]
    assert sorted(with_both) == [0, 0, 6]


async def test_a_cancelled_request_is_aborted_and_leaves_no_load() -> None:
    hosts = [Host(STEPS, Script(answer_tokens=5000)) for _ in range(2)]
    async with up(*hosts), fleet_of(*hosts) as fleet:
        asking = asyncio.create_task(say(fleet, stream=True))
        await soon(lambda: any(host.requests() for host in hosts))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert [fleet.routing.work(place) for place in (0, 1)] == [0, 0]
        assert len(fleet.routing.available(asyncio.get_running_loop().time())) == 2


async def test_the_pool_has_the_traits_that_all_endpoints_share() -> None:
    hosts = Host(SimConfig(zero_latency=True, max_model_len=512)), Host(SimConfig(zero_latency=True, max_model_len=256))
    async with up(*hosts), fleet_of(*hosts) as fleet:
        assert fleet.traits.context_tokens == 256
        assert fleet.traits.detected[0] == "2 of 2 endpoints"
        one = fleet.members[0].backend
        assert one is not None
        assert fleet.traits.inflight == 2 * one.traits.inflight
        assert await fleet.count_tokens("some words") is not None
        load = await fleet.load()
        assert load is not None
        assert load.running == 0


async def test_a_cancelled_connect_leaves_no_connection_open() -> None:
    mute = Host(odd=lambda path, body, connection: True)
    async with up(Host(), mute) as hosts:
        opening = asyncio.create_task(connect([host.url for host in hosts], None, uses_tools=False, notify=print))
        await soon(lambda: bool(mute.connections))
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await soon(lambda: not any(host.connections for host in hosts))


async def test_endpoints_that_cannot_form_a_pool_are_closed() -> None:
    async with up(Host(), Host(SimConfig(model="tiny"))) as hosts:
        with pytest.raises(SpecError, match="same model"):
            await connect([host.url for host in hosts], None, uses_tools=False, notify=print)
        await soon(lambda: not any(host.connections for host in hosts))


async def test_each_endpoint_has_its_own_kv_capacity_and_one_that_is_down_that_of_the_smallest() -> None:
    large, small, down = Host(replace(STEPS, num_blocks=400)), Host(replace(STEPS, num_blocks=100)), Host(STEPS)
    async with up(large, small, down):
        down.kill()
        async with fleet_of(large, small, down) as fleet:
            assert fleet.kv_capacities == {large.url: 6400, small.url: 1600, down.url: 1600}
            assert not fleet.is_available(down.url)


async def test_agents_of_a_run_are_served_by_the_endpoints_that_have_room_for_them() -> None:
    @Tool.define(effect="read")
    def look(it: str = "") -> str:
        """Looks it up."""
        return "seen"

    large, small = Host(replace(STEPS, num_blocks=4000)), Host(replace(STEPS, num_blocks=1100))
    async with up(large, small):
        results = await BatchAgent.run(
            task="Look at {it}",
            inputs=[f"{number:03}" * 4000 for number in range(12)],  # of 3,000 tokens
            tools=[look],
            backend=[large.url, small.url],
            progress=False,
        )
    assert all(result.ok for result in results)
    assert results.scheduling.kv_tokens == 5100 * 16
    assert large.requests() > small.requests() > 0


async def test_an_agent_that_ends_leaves_each_endpoint_that_keeps_its_session_and_no_other() -> None:
    backends = {url: ScriptedBackend(lambda request: reply("fine"), has_agent_sessions=True) for url in "abc"}

    async def open_one(url: str) -> Backend:
        return backends[url]

    fleet = await EndpointPool.open(list(backends), open_one, lambda text: None)
    for url in "ab":
        fleet.assign("agent", url)
        await say(fleet, agent="agent")
    await fleet.leave("agent")
    await fleet.leave("agent")
    assert [each.left for each in backends.values()] == [["agent"], ["agent"], []]
    await fleet.aclose()
