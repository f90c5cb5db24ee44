"""Agents over several endpoints: one run, whoever of them dies, and nothing done twice."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.sim_hosts import CHAT, STEPS, Host, poison, soon, up
from tests.support.virtual_time import virtual

from batch_agent import AgentResult, BackendError, BatchAgent, ErrorKind, Flow, RunStopped, SpecError, Tool
from batch_agent.sim import Script, SimConfig


def urls(*hosts: Host) -> list[str]:
    return [host.url for host in hosts]


async def run(backend: Any, count: int = 12, **options: Any) -> list[AgentResult]:
    given: dict[str, Any] = {"task": "Look at {it}", "inputs": [f"case {n}" for n in range(count)], "progress": False}
    results: list[AgentResult] = await BatchAgent.run(backend=backend, **given | options)
    return results


async def test_agents_share_the_endpoints_of_a_list() -> None:
    async with up(Host(STEPS), Host(STEPS)) as hosts:
        results = await run(urls(*hosts), 40)
    assert all(result.ok for result in results)
    assert [result.index for result in results] == list(range(40))
    asked = [sum(path == CHAT for path, _ in host.posts) for host in hosts]
    assert sum(asked) == 40
    assert min(asked) >= 10


@pytest.mark.parametrize("how", ["absolute", "relative", "home", "listed"])
async def test_endpoints_can_be_named_by_a_hostfile(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    async with up(Host(STEPS), Host(STEPS)) as hosts:
        (tmp_path / "agents.hostfile").write_text(f"# two\n{hosts[0].address} big\n{hosts[1].url}\n")
        backend: Any = {
            "absolute": f"hostfile://{tmp_path}/agents.hostfile",
            "relative": "hostfile://agents.hostfile",
            "home": "hostfile://~/agents.hostfile",
            "listed": ["hostfile://agents.hostfile"],
        }[how]
        assert all(result.ok for result in await run(backend, 20))
    assert all(host.requests() for host in hosts)


async def test_invalid_endpoint_lists_are_rejected_before_any_request(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("gpu1:99999\n")
    async with up(Host(), Host(SimConfig(zero_latency=True, model="tiny"))) as (host, other):
        for backend, words in [
            ([host.url, other.url], r"'sim'.*'tiny'"),
            ([host.url, host.url], "listed twice"),
            ([host.url, f"{host.url}/v1"], "listed twice"),
            ([host.url, f"vllm://{host.address}"], "listed twice"),
            ([host.url, "grpc://x"], "is not a known backend"),
            ([], "a list of these"),
            ([host.url, 7], "a list of these"),
            (f"hostfile://{bad}", "line 1.*not a port"),
            (f"hostfile://{tmp_path}/none", "does not exist"),
        ]:
            with pytest.raises(SpecError, match=words):
                await run(backend)
    assert host.requests() == other.requests() == 0


async def test_an_endpoint_down_at_the_start_is_reported_and_the_run_continues(
    capsys: pytest.CaptureFixture[str],
) -> None:
    there, away = Host(), Host()
    async with up(away):
        pass
    async with up(there):
        assert all(result.ok for result in await run(urls(away, there)))
    assert f"{away.url} cannot be used; its requests go to the other endpoints" in capsys.readouterr().err


async def test_all_endpoints_down_at_the_start_is_one_clear_error() -> None:
    hosts = Host(), Host()
    async with up(*hosts):
        pass
    with pytest.raises(BackendError, match="None of the 2 endpoints can be used") as raised:
        await run(urls(*hosts))
    assert all(host.url in str(raised.value) for host in hosts)


async def test_an_endpoint_that_dies_during_the_run_loses_no_result_and_repeats_no_write() -> None:
    hosts = [Host(STEPS, Script(tool_turns=2, answer_tokens=12)) for _ in range(3)]
    written: Counter[str] = Counter()

    @Tool.define(effect="write")
    async def put(case: str, key: str) -> str:
        written[f"{case} {key}"] += 1
        if sum(written.values()) == 30:
            hosts[1].kill()
        return "put"

    async with up(*hosts):
        calls = [{"calls": [{"name": "put", "arguments": {"case": "CASE", "key": key}}]} for key in "ab"]
        orders = [str(calls).replace("'", '"').replace("CASE", f"case {number}") for number in range(40)]
        results = await run(urls(*hosts), inputs=[f"[[sim: {each}]]" for each in orders], tools=[put])
    assert [result.index for result in results] == list(range(40))
    assert all(result.ok for result in results)
    assert set(written.values()) == {1}
    assert len(written) == 80


async def test_when_all_endpoints_die_the_run_stops_with_its_results() -> None:
    hosts = [Host(STEPS), Host(STEPS)]
    done: list[AgentResult] = []

    def on_result(result: AgentResult) -> None:
        done.append(result)
        if len(done) == 5:
            for host in hosts:
                host.kill()

    async with up(*hosts):
        with pytest.raises(RunStopped, match="None of 2 endpoints answered the request") as raised:
            await run(urls(*hosts), 60, max_inflight=8, on_result=on_result, max_retries=0)
    assert {result.index for result in raised.value.results if result.ok} == {each.index for each in done if each.ok}
    assert sum(each.ok for each in done) >= 5
    assert raised.value.kind is ErrorKind.UNAVAILABLE


async def test_a_short_outage_of_all_endpoints_fails_no_agent() -> None:
    hosts = [Host(STEPS), Host(STEPS)]
    done: list[AgentResult] = []

    async def restart() -> None:
        await soon(lambda: len(done) > 5)
        for host in hosts:
            host.kill()
        await asyncio.sleep(0.3)
        for host in hosts:
            await host.start()

    async with up(*hosts), asyncio.TaskGroup() as group:
        group.create_task(restart())
        results = await run(urls(*hosts), 60, max_inflight=8, on_result=done.append)
    assert all(result.ok for result in results)


async def test_an_agent_that_every_endpoint_rejects_fails_alone_and_ejects_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for fault in ("400", "500", "reset"):
        async with up(Host(), Host()) as hosts:
            cases = [f"case {n}" for n in range(20)]
            results = await run(urls(*hosts), inputs=[*cases, poison(fault)], max_retries=1)
        assert [result.index for result in results if not result.ok] == [20]
        assert "is down" not in capsys.readouterr().err


@virtual  # a stall of this process would make an endpoint seem slow
async def test_later_turns_go_to_the_endpoint_with_the_cached_context() -> None:
    hosts = [Host(STEPS, Script(tool_turns=3, answer_tokens=12)) for _ in range(3)]

    @Tool.define(effect="read")
    async def look(key: str) -> str:
        return f"about {key}"

    async with up(*hosts):
        assert all(result.ok for result in await run(urls(*hosts), 30, tools=[look]))
    homes: dict[str, set[int]] = {}
    for place, host in enumerate(hosts):
        for path, body in host.posts:
            if path == CHAT and body.get("max_tokens") != 1:
                homes.setdefault(body["messages"][0]["content"], set()).add(place)
    assert len(homes) == 30
    assert sum(len(places) == 1 for places in homes.values()) >= 28


async def test_a_run_resumed_with_other_endpoints_repeats_no_request(tmp_path: Path) -> None:
    async with up(Host(), Host(), Host()) as hosts:
        first = await run(urls(*hosts[:2]), 10, checkpoint_dir=tmp_path)
        second = await run(urls(*hosts[1:]), 12, checkpoint_dir=tmp_path)
        third = await run(hosts[2].url, 12, checkpoint_dir=tmp_path)
    assert [result.text for result in second[:10]] == [result.text for result in first]
    assert all(result.ok for result in third)
    assert sum(host.requests() for host in hosts) == 12


async def test_plan_and_lint_accept_lists_of_endpoints(tmp_path: Path) -> None:
    async with up(Host(), Host()) as hosts:
        options: dict[str, Any] = {"task": "{it}", "inputs": ["a", "b"], "backend": urls(*hosts)}
        (tmp_path / "hosts").write_text("\n".join(host.address for host in hosts))
        for backend in (urls(*hosts), f"hostfile://{tmp_path}/hosts"):
            assert (await BatchAgent.plan(**options | {"backend": backend})).agents == 2
            assert await BatchAgent.lint(**options | {"backend": backend}, exact=True)
    assert sum(host.requests() for host in hosts) == 0


async def test_stages_of_a_flow_share_a_list_of_endpoints() -> None:
    async with up(Host(STEPS), Host(STEPS)) as hosts:
        flow = Flow([{"x": str(n)} for n in range(20)], backend=urls(*hosts))
        found = await flow.map("first", "Say {x}").map("second", "Judge {first}").run()
    assert len(found.items) == 20
    assert all(item["second"] for item in found.items)
    assert sum(host.requests() for host in hosts) == 40
    assert all(host.requests() for host in hosts)
