"""What was wanted of the peers' numbers, and what is made of them."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.peers.results_file import Kept
from benchmarks.peers.rounds import medians, parted
from benchmarks.peers.targets import targets
from benchmarks.render import cells
from benchmarks.render import peers as peer_tables
from tests.support.peer_results import one, parts

from benchmarks import report
from benchmarks.peers import chart


def missed(found: dict[str, Any]) -> list[str]:
    return [each["what"] for each in targets(found) if not each["is_met"]]


def test_good_numbers_meet_every_target() -> None:
    found = targets(parts())
    assert [each["what"] for each in found if not each["is_met"]] == []
    assert "ten_keys_64: wall / ideal" in [each["what"] for each in found]


def test_more_cpu_time_than_the_expert_loop_allows_misses_the_target() -> None:
    found = parts()
    found["single_2000"]["medians"]["batch_agent"] = one(1.31)
    assert missed(found) == ["single_2000: CPU / expert"]


def test_a_run_with_a_checkpoint_may_cost_more_than_the_expert_loop() -> None:
    found = parts()
    found["checkpoint_on"]["medians"]["batch_agent"] = one(1.6)
    assert missed(found) == []


def test_a_framework_that_is_nearly_as_cheap_misses_the_target() -> None:
    found = parts()
    found["faults"]["medians"]["pydantic_ai"] = one(14.0)
    assert missed(found) == ["faults: CPU of pydantic_ai / ours"]


def test_a_framework_whose_agents_failed_is_not_compared() -> None:
    found = parts()
    found["faults"]["medians"]["pydantic_ai"] = one(2.0, failed=50)
    assert missed(found) == []


def test_an_agent_lost_by_batch_agent_misses_the_target() -> None:
    found = parts()
    found["faults"]["medians"]["batch_agent"]["lost"] = 1
    assert missed(found) == ["faults: failed, lost, doubled"]


def test_wall_time_loop_delay_and_memory_above_their_limits_miss_the_target() -> None:
    found = parts()
    found["slow_tool"]["medians"]["batch_agent"]["wall_s"] = 2.5
    found["lag"]["worst_lag_s"]["batch_agent"]["tools"] = 0.06
    found["memory"]["kb_per_agent"]["batch_agent"] = 11.0
    found["cost"]["by_number_of_agents"]["batch_agent"]["1000"]["cpu_us_per_agent"] = 200.0
    assert [what.split(",")[0] for what in missed(found)] == [
        "slow_tool: wall / expert",
        "slow_tool: wall / ideal",
        "worst lag of the loop at 10",
        "memory of a waiting agent",
        "CPU of an agent",
    ]


def test_medians_are_of_the_metrics_that_all_rounds_have() -> None:
    rounds = [{"wall_s": 3.0, "first_words": ""}, {"wall_s": 1.0, "first_words": "no", "ttft_p50_s": 1.0}]
    assert medians(rounds) == {"wall_s": 2.0, "first_words": "no"}


def test_an_unknown_benchmark_part_ends_the_program() -> None:
    assert parted("b,a", ["a", "b"], "part") == ["b", "a"]
    with pytest.raises(SystemExit, match="no such part: c; there are a, b"):
        parted("c", ["a", "b"], "part")


def test_measuring_one_part_again_keeps_the_dates_of_the_other_parts(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    Kept(path, "first").put("start", {"import_s": 0.1, "names_s": 0.15, "first_s": 0.2})
    later = Kept(path, "second")
    later.put("lag", parts()["lag"])
    assert later.parts["start"]["from"]["commit"] == "first"
    assert "from" not in later.parts["lag"]
    wanted = [each["what"] for each in json.loads(path.read_text())["targets"]]
    assert wanted == [
        "worst lag of the loop at 10,000 agents, s",
        "import and first answer, s",
        "import batch_agent, s",
    ]


def test_tables_have_a_row_for_each_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report.write("peers", {"parts": parts(), "targets": targets(parts())}, tmp_path / "peers.json", commit="x")
    monkeypatch.setattr(cells, "RESULTS", tmp_path)
    tables = [peer_tables.single, peer_tables.agents, peer_tables.workloads, peer_tables.endpoints]
    for make in tables:
        rows = make().splitlines()
        assert len({row.count("|") for row in rows}) == 1
        assert "LangGraph" in make()
    assert "| LangGraph | 40.00x |" in peer_tables.single()
    assert "| LangGraph | 10.00x (10) |" in peer_tables.agents()
    assert [row.endswith(" 2.00x |") for row in peer_tables.workloads().splitlines()[2:]] == [True] * 3
    assert "8.0 kB" in peer_tables.alone()
    assert all(each["is_met"] for each in peer_tables.targets())


def test_the_picture_is_xml_with_a_bar_for_each_peer() -> None:
    drawn = ElementTree.fromstring(chart.picture(parts()))
    bars = [each for each in drawn.iter("{http://www.w3.org/2000/svg}rect") if "bar" in each.get("class", "")]
    assert len(bars) == 6
    assert all(float(bar.get("width", "0")) > 0 for bar in bars)
