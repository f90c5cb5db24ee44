"""The GPU measurements, on the simulated engine: their numbers are of no interest here, that they come is."""

import argparse
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import kv_tiers
from benchmarks.gpu.__main__ import PARTS, grouped, jobs, run_parts, serve_and_run
from benchmarks.gpu.gather_loop import plain
from benchmarks.gpu.model_shapes import make_model
from benchmarks.gpu.peers import peers
from benchmarks.gpu.results_file import Notes
from benchmarks.gpu.scenario import Scene
from benchmarks.gpu.scripted_backend import Played
from benchmarks.gpu.server_info import Server
from benchmarks.gpu.token_texts import Words, nonce
from benchmarks.gpu.turn_recorder import Watch, now
from benchmarks.gpu.vllm_process import ServerFailed, serve
from benchmarks.gpu.workloads import Scale, Stage
from benchmarks.peers.runs import Broken
from benchmarks.render import cells
from benchmarks.render import gpu_peers as gpu_peer_tables
from tests.support.python_programs import write_python_program

from batch_agent import BatchAgent
from batch_agent.backends.connect import connect
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.core.events import Event
from batch_agent.core.messages import Assistant, Prompt, ToolResults, ToolSpec, User
from batch_agent.core.protocols.backend import Backend, ReportsLoad, TakesHints
from batch_agent.core.requests import ContextHint, Request, Sampling, Usage
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import ScriptedBackend, say

SCENE = Scene(
    tasks=("first words", "other words"),
    turns=3,
    output=12,
    system="You look things up.",
    said="Let me see.",
    result="it",
)
SMALL = argparse.Namespace(agents_scale=0.02, tokens_scale=0.02, seconds_scale=0.001, rounds=1)


class Silent:
    def emit(self, event: Event) -> None:
        pass


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script()) as server:
        yield server


async def play(sim: SimServer, scene: Scene, watch: Watch) -> list[Any]:
    backend = await connect(f"{sim.url}/v1", "sim", uses_tools=False, notify=lambda text: None)
    try:
        return await BatchAgent.run(
            task="{it}",
            inputs=list(scene.tasks),
            system_prompt=scene.system,
            tools=[scene.tool(watch)],
            backend=Played(backend, scene, watch),
            streaming=True,
            events=Silent(),
        )
    finally:
        await backend.aclose()


async def test_a_simulated_agent_calls_its_tool_on_every_turn_but_the_last(sim: SimServer) -> None:
    results = await play(sim, SCENE, Watch())
    assert [result.output for result in results] == ["done", "done"]
    assert [[call.arguments for call in result.tool_calls] for result in results] == [
        ['{"key":"0-0"}', '{"key":"0-1"}'],
        ['{"key":"1-0"}', '{"key":"1-1"}'],
    ]
    first, said, returned, *_ = results[0].transcript
    assert isinstance(first, User)
    assert isinstance(said, Assistant)
    assert said.text == "Let me see."
    assert isinstance(returned, ToolResults)
    assert returned.results[0].content == "it"


async def test_the_usage_of_a_simulated_turn_is_that_of_the_server(sim: SimServer) -> None:
    watch = Watch()
    results = await play(sim, SCENE, watch)
    assert {turn.usage.output for turn in watch.turns} == {SCENE.output}
    for agent, result in enumerate(results):
        turns = [turn.usage for turn in watch.turns if turn.agent == agent]
        assert result.usage.input == sum(usage.input for usage in turns)
        assert all(0 < one.input < other.input for one, other in pairwise(turns))
        assert None not in result.timing.ttft


async def test_the_plain_loop_spends_the_same_tokens(sim: SimServer) -> None:
    ours, theirs = Watch(), Watch()
    await play(sim, SCENE, ours)
    await plain(sim.url, "sim", SCENE, theirs)
    assert theirs.failures == []
    for counted in ("prompt_tokens", "output_tokens", "requests"):
        assert ours.numbers()[counted] == theirs.numbers()[counted]


async def test_tools_are_not_sent_and_every_turn_has_a_fixed_length() -> None:
    inner = ScriptedBackend(lambda request: say("noise"))
    played = Played(inner, SCENE, Watch())
    prompt = Prompt("Look.", (ToolSpec("look_up", "", {"type": "object"}),))
    for _ in range(2):
        request = Request(prompt, (User("first words"),), "m", Sampling(temperature=0.5), stream=True)
        async with played.stream(request) as deltas:
            assert [delta async for delta in deltas]
    one, other = inner.requests
    assert one.prompt.tools == ()
    assert one.prompt is other.prompt
    assert (one.sampling.temperature, one.sampling.max_tokens, one.sampling.extra) == (0.5, 12, {"ignore_eos": True})
    assert one.stream


async def test_each_request_body_begins_with_the_request_before_it() -> None:
    inner, watch = ScriptedBackend(lambda request: say("noise"), native_tools=False), Watch()
    scene = replace(SCENE, tasks=SCENE.tasks[:1])
    played = Played(inner, scene, watch)
    [result] = await BatchAgent.run(task="{it}", inputs=["first words"], tools=[scene.tool(watch)], backend=played)
    assert result.ok
    bodies = [OpenAIChat().encode(request).removesuffix(b"]}") for request in inner.requests]
    assert len(bodies) == 3
    assert all(later.startswith(earlier) for earlier, later in pairwise(bodies))


async def test_a_prefix_warmup_request_is_forwarded_unchanged() -> None:
    inner = ScriptedBackend(lambda request: say("noise"))
    played = Played(inner, SCENE, Watch())
    for text in ("Hi", "first words"):
        request = Request(Prompt("Look."), (User(text),), "m", Sampling(max_tokens=1))
        async with played.stream(request) as deltas:
            assert [delta async for delta in deltas]
    assert [request.sampling.max_tokens for request in inner.requests] == [1, 1]


async def test_a_simulated_agent_backend_has_the_traits_of_its_inner_backend_and_tool_calls() -> None:
    inner: Backend = ScriptedBackend(lambda request: say("noise"), native_tools=False, kv_tokens=4_096)
    played = Played(inner, SCENE, Watch())
    assert played.traits.native_tools
    assert played.traits.kv_tokens == 4_096
    assert isinstance(played, ReportsLoad)
    assert await played.load() is None
    assert isinstance(played, TakesHints)
    await played.hint(ContextHint("agent"))  # the inner backend takes none


@pytest.mark.engines
async def test_every_benchmark_part_writes_its_numbers_to_the_file(sim: SimServer, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    here = [part for part in PARTS if part != "peers"]  # those are many processes, with a test of their own
    await run_parts(sim.url, here, SMALL, Notes(path, "abc", gpu=None), float("inf"))
    written = json.loads(path.read_text())
    assert written["commit"] == "abc"
    parts = written["parts"]
    assert set(parts) == set(here)
    assert not [part for part, numbers in parts.items() if "error" in numbers]
    for part in ("resident", "offload"):
        for way in ("batch_agent", "dispatch_all"):
            assert parts[part][way]["failures"] == []
            assert parts[part][way]["requests"] == 4 * parts[part]["setup"]["sizes"]["agents"]
    for part in ("shared_results", "shared_results_roomy"):
        for who in ("topics", "zipf"):
            for way in parts[part][who].values():
                assert way["failures"] == []
                assert way["requests"] == 4 * parts[part]["setup"]["sizes"]["agents"]
                assert way["cpu_s"] > 0
    assert parts["inflight"]["slow_tool"]["same_tokens"]["in_turns"]
    assert parts["prefix"]["agents_100"]["shared"]["ttft_first_turn_s"]["p50"] > 0


@pytest.mark.slow
async def test_clients_in_separate_processes_return_the_same_answers(
    sim: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu_peers.json"
    async with Server(sim.url) as server:
        stage = Stage(server, Words(), Notes(path, "abc"), Scale(agents=0.01))
        await peers(stage, ("batch_agent", "expert"), rounds=1)
    part = json.loads(path.read_text())["parts"]["peers"]
    for way in ("whole", "streamed"):
        for one in part[way]["medians"].values():
            counted = [one[name] for name in ("answered", "requests", "failed", "lost", "doubled")]
            assert counted == [20, 20, 0, 0, 0]
            assert one["generation_tokens"] == 20 * part["setup"]["output"]
            assert one["cpu_us_per_agent"] > 0
            assert ("ttft_p50_s" in one) == (way == "streamed")
        assert part[way]["medians"]["expert"]["cpu_times_expert"] == 1
    monkeypatch.setattr(cells, "RESULTS", tmp_path)
    rows = gpu_peer_tables.real_peers().splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert sum("aiohttp, hand-optimized | 1.00x" in row for row in rows) == 2


@pytest.mark.slow
async def test_a_client_that_cannot_start_reports_the_reason(sim: SimServer, tmp_path: Path) -> None:
    async with Server(sim.url) as server:
        stage = Stage(server, Words(), Notes(tmp_path / "gpu.json", "abc"), Scale(agents=0.01))
        with pytest.raises(Broken, match="No module named"):
            await peers(stage, ("nobody",), rounds=1)


def test_measuring_one_gpu_part_again_keeps_the_other_parts_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    Notes(path, "first", gpu="an H200").put(1.0, "layout", "took_s")
    Notes(path, "second", gpu="an H200").put(2.0, "prefix", "took_s")
    again = Notes(path, "third", gpu="an H200")
    again.put(3.0, "prefix", "took_s")
    written = json.loads(path.read_text())
    assert (written["commit"], written["parts"]["prefix"]) == ("third", {"took_s": 3.0})
    layout = written["parts"]["layout"]
    assert (layout["took_s"], layout["from"]["commit"], layout["from"]["gpu"]) == (1.0, "first", "an H200")


async def test_a_failing_benchmark_part_does_not_stop_the_next(sim: SimServer, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    await run_parts(sim.url, ["resident", "inflight"], SMALL, Notes(path, "abc"), ends_at=0.0)
    parts = json.loads(path.read_text())["parts"]
    assert "TimeoutError" in parts["resident"]["error"]
    assert "TimeoutError" in parts["inflight"]["error"]


def test_prompts_of_different_runs_share_no_prefix_and_have_equal_lengths() -> None:
    one, other = nonce(), nonce()
    assert len(one) == len(other)
    texts = [Words().own(number, one, "seed", 40) for number in range(200)]
    assert len({tuple(text.split()[:2]) for text in texts}) == 200
    assert {len(text.split()) for text in texts} == {40}


def test_the_length_of_a_text_is_scaled_to_the_tokenizer() -> None:
    words = Words.measured(3_000)
    assert len(words.text("seed", 300).split()) == 200


def test_a_model_config_has_its_shape_and_the_vocabulary_of_its_tokenizer(tmp_path: Path) -> None:
    tokens = {"model": {"vocab": {"a": 0, "b": 299}}, "added_tokens": [{"id": 300}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokens))
    folder = make_model("7b", tmp_path / "models", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert (config["vocab_size"], config["num_hidden_layers"]) == (512, 28)
    assert (folder / "tokenizer.json").exists()


async def test_a_server_that_exits_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    program = tmp_path / "python"
    write_python_program(program, "print('no such GPU')\n")
    with pytest.raises(ServerFailed, match="no such GPU"):
        async with serve(str(program), tmp_path, (), log=tmp_path / "log", limit=20, vllm_path=None):
            pass


@pytest.mark.slow
async def test_a_server_is_started_for_its_parts_and_stopped(tmp_path: Path) -> None:
    options = served(tmp_path, only=["prefix", "inflight"])
    path = tmp_path / "gpu.json"
    await serve_and_run(options, Notes(path, "abc"))
    parts = json.loads(path.read_text())["parts"]
    assert [part for part in ("prefix", "inflight") if "took_s" in parts[part]] == ["prefix", "inflight"]
    assert not [part for part in parts.values() if "error" in part]
    ports = (tmp_path / "models" / "ports").read_text().split()
    assert len(ports) == 2
    for port in ports:
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", int(port)), timeout=1):
            pass


def served(tmp_path: Path, **options: Any) -> argparse.Namespace:
    """Options for servers that are simulated ones."""
    program = tmp_path / "python"
    write_python_program(program, _STANDS_FOR_VLLM)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
    defaults = {
        "budget": 100.0,
        "together": [],
        "python": str(program),
        "vllm_path": None,
        "vllm_arguments": "",
        "model_root": tmp_path / "models",
        "tokenizer": tmp_path,
    }
    return argparse.Namespace(**(vars(SMALL) | defaults | options))


@pytest.mark.slow
async def test_the_ways_of_a_kv_tier_take_turns_and_a_part_goes_on_where_it_stopped(
    sim: SimServer, tmp_path: Path
) -> None:
    path = tmp_path / "gpu.json"
    notes, options = Notes(path, "abc"), argparse.Namespace(**(vars(SMALL) | {"rounds": 2}))
    for _ in range(2):
        await run_parts(sim.url, ["kv_none", "kv_workers", "kv_keep_warm"], options, notes, float("inf"))
    parts = json.loads(path.read_text())["parts"]
    began = {}
    for part, ways in {"kv_none": ("ours", "loop"), "kv_workers": ("four",), "kv_keep_warm": ("off", "on")}.items():
        agents = parts[part]["setup"]["sizes"]["agents"]
        for way in ways:
            rounds = parts[part][way]
            assert [each["round"] for each in rounds] == [0, 1]
            assert [each["failures"] for each in rounds] == [[], []]
            assert [len(each.get("turns", ())) for each in rounds] == [4 * agents + 1, 0]
            assert rounds[0]["computed_tokens"] == rounds[0]["prompt_tokens"] - rounds[0]["cached_tokens"] > 0
            began[part, way] = [each["began"] for each in rounds]
    assert began["kv_none", "ours"][0] <= began["kv_none", "loop"][0]
    assert began["kv_none", "loop"][1] <= began["kv_none", "ours"][1]
    assert parts["kv_none"]["ours"][0]["engine"]["scheduling"]["inflight"] > 0
    assert parts["kv_keep_warm"]["on"][0]["engine"]["scheduling"]["keep_warm"] is not None
    assert parts["kv_keep_warm"]["off"][0]["others"]["failures"] == []


async def test_an_extra_round_leaves_later_servers_their_time(sim: SimServer, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    options = argparse.Namespace(**(vars(SMALL) | {"rounds": 3}))
    ends_at = time.monotonic() + 1_000
    await run_parts(sim.url, ["kv_none"], options, Notes(path, "abc"), ends_at, reserved=1_000)
    part = json.loads(path.read_text())["parts"]["kv_none"]
    assert [len(part[way]) for way in ("ours", "loop")] == [1, 1]
    assert set(part["not_begun"]) == {"ours_1", "loop_1", "ours_2", "loop_2"}


def test_the_trace_of_a_run_has_the_times_and_tokens_of_each_turn() -> None:
    watch = Watch()
    watch.start()
    watch.turn_done(3, 0, "", watch_time := now(), watch_time + 0.25, Usage(100, 64, 12))
    headings, line = watch.trace()
    turn = dict(zip(headings.split(","), map(int, line.split(",")), strict=True))
    assert turn["first_token"] - turn["sent"] == pytest.approx(250, abs=1)
    assert [turn[each] for each in ("agent", "turn", "ready")] == [3, 0, 0]
    assert [turn[f"{each}_tokens"] for each in ("prompt", "cached", "output")] == [100, 64, 12]


@pytest.mark.slow
async def test_a_server_that_dies_in_a_run_costs_that_run_and_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"

    def dies_at_the_first_tool(least: float, most: float) -> Callable[[str], float]:
        def seconds(key: str) -> float:
            if len((models / "ports").read_text().split()) == 2:  # those that the group was started with
                [tier] = [each for each in (models / "commands").read_text().splitlines() if _TIER in each]
                os.kill(int(tier.split()[0]), signal.SIGKILL)
            return 0.0

        return seconds

    monkeypatch.setattr(kv_tiers, "between", dies_at_the_first_tool)
    path = tmp_path / "gpu.json"
    notes = Notes(path, "abc")
    await serve_and_run(served(tmp_path, only=["kv_none", "prefix"], together=["kv_none,prefix"]), notes)
    parts = json.loads(path.read_text())["parts"]
    assert "took_s" in parts["prefix"]
    assert [run["server_died"] for run in parts["kv_none"]["ours"]] == [True]
    assert [run["server_died"] for run in parts["kv_none"]["loop"]] == [False]
    assert parts["kv_none"]["loop"][0]["failures"] == []
    assert "the server ended" in parts["kv_none"]["errors"]["died_0"]
    assert len((models / "ports").read_text().split()) == 3


@pytest.mark.slow
async def test_a_server_that_cannot_start_beside_another_is_started_alone(tmp_path: Path) -> None:
    options = served(tmp_path, only=["prefix", "inflight"], together=["prefix,inflight"])
    program = Path(f"{options.python}.py")
    first_fails = "try: open('first', 'x').close()\nexcept FileExistsError: pass\nelse: sys.exit('no room')"
    program.write_text(program.read_text().replace("# before", first_fails))
    path = tmp_path / "gpu.json"
    await serve_and_run(options, Notes(path, "abc"))
    parts = json.loads(path.read_text())["parts"]
    assert all("took_s" in parts[part] for part in ("prefix", "inflight"))
    assert sum("errors" in part and "no room" in part["errors"]["start_0"] for part in parts.values()) == 1


def test_servers_are_started_in_the_order_in_which_their_parts_are_named() -> None:
    found = jobs(["kv_64", "kv_workers", "resident", "kv_none", "layout"])
    assert [job.parts for job in found] == [("kv_64",), ("kv_workers", "kv_none"), ("resident", "layout")]
    groups = [[job.parts[0] for job in group] for group in grouped(found, ["resident,kv_64"])]
    assert groups == [["kv_64", "resident"], ["kv_workers"]]


_TIER = " ".join(kv_tiers.SMALL_GPU)
_STANDS_FOR_VLLM = """
import json, os, sys
port = sys.argv[sys.argv.index("--port") + 1]
open("ports", "a").write(port + "\\n")
open("commands", "a").write(" ".join([str(os.getpid()), *sys.argv]) + "\\n")
# before
order = json.dumps({"port": int(port), "config": {"zero_latency": True}})
os.execv(sys.executable, [sys.executable, "-m", "batch_agent.sim", order])
"""
