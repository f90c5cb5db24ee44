"""Rules of the tree: module names, class names, folder sizes and import circles.

What breaks a rule today is listed here as still to do. A list may only shrink: a new violation fails, and so does an
entry that is no longer needed. `python -m scripts.code_structure --list` prints what there is.
"""

import pytest
from scripts.code_structure import NOUNS_IN_ED, NOUNS_IN_ING, Source, is_participle, strong_components

MAX_MODULES_IN_A_FOLDER = 20

MODULES_TO_RENAME = {
    "agent.reading",
    "agent.shortening",
    "agent.working",
    "backends.batched",
    "backends.dialects.reading",
    "backends.embedded",
    "backends.embedded.verified",
    "cli.asked",
    "cli.awaiting",
    "cli.ending",
    "cli.recorded",
    "cli.reducing",
    "cli.run_reduced",
    "cli.sharing",
    "cli.shown",
    "cli.trusted",
    "cluster.calling",
    "cluster.calls_made",
    "cluster.hearing",
    "cluster.joined",
    "cluster.opening",
    "cluster.outgoing",
    "cluster.redis_sharing",
    "cluster.telling",
    "cluster.told",
    "cluster.working",
    "core.nesting",
    "core.sharing",
    "data.counted",
    "data.exporting",
    "data.growing",
    "data.reading",
    "data.spooled",
    "data.threaded",
    "data.writing",
    "engine.acting",
    "engine.asking",
    "engine.blocking",
    "engine.chunked",
    "engine.handing",
    "engine.opening",
    "engine.sampling",
    "engine.serving",
    "engine.spending",
    "engine.splitting",
    "engine.warming",
    "flows.asking",
    "flows.checking",
    "flows.compiling",
    "flows.driving",
    "flows.mapping",
    "flows.reducing",
    "flows.writing",
    "observe.live.redirecting",
    "observe.live.redrawing",
    "observe.recorded",
    "observe.recording",
    "observe.report.following",
    "observe.report.holding",
    "observe.report.serving",
    "observe.report.writing",
    "observe.seen",
    "observe.sharing",
    "observe.telemetry.counting",
    "observe.watching",
    "placing",
    "placing.shipping",
    "plan.merging",
    "plan.ordering",
    "planning",
    "preparing",
    "processes.ordering",
    "processes.spawning",
    "readying",
    "replaying",
    "running",
    "runtimes.copy_listing",
    "runtimes.copy_touched",
    "runtimes.working",
    "schedule.standing",
    "staffing",
    "swarm.filling",
    "swarm.reducing",
    "swarm.sending",
    "swarm.wrapping",
    "tasks.running",
    "tools.equipped",
    "tools.opening",
    "tools.pacing",
}
# How many modules define each.
CLASSES_TO_RENAME = {
    "Address": 2,
    "Answer": 4,
    "Asked": 5,
    "Batch": 2,
    "Chunked": 2,
    "Claim": 2,
    "Command": 2,
    "Comparison": 2,
    "Crew": 3,
    "Delivery": 3,
    "Engine": 2,
    "Entry": 3,
    "Lease": 2,
    "Limits": 2,
    "Line": 2,
    "Lines": 2,
    "Link": 2,
    "Member": 2,
    "Node": 2,
    "Once": 2,
    "Outcome": 2,
    "Pace": 2,
    "Pages": 2,
    "Part": 2,
    "Piece": 2,
    "Place": 3,
    "Places": 3,
    "Progress": 2,
    "Recording": 2,
    "Reduce": 2,
    "Refusal": 2,
    "Repeats": 2,
    "Reply": 2,
    "Script": 2,
    "Server": 4,
    "Session": 3,
    "Sharing": 3,
    "Stage": 4,
    "Store": 2,
    "StreamDecoder": 3,
    "Together": 2,
    "Tokens": 2,
    "Told": 3,
    "Watch": 2,
    "Wire": 2,
    "Words": 2,
    "Work": 2,
}
FOLDERS_TO_SPLIT = {
    "batch_agent/cli": 37,
    "batch_agent/core": 36,
    "batch_agent/backends": 31,
    "batch_agent/engine": 29,
    "batch_agent/cluster": 28,
    "batch_agent/sim": 28,
    "batch_agent/runtimes": 26,
    "batch_agent/tools": 26,
    "batch_agent/observe": 22,
}
CIRCLES_TO_CUT = [
    {
        "core.errors",
        "core.flow",
        "core.results",
        "data.cells",
        "data.columns",
        "data.exporting",
        "data.extras",
        "data.html",
        "data.names",
        "data.parquet",
        "data.rows",
        "data.spool",
        "files",
    },
    {
        "backends.http1",
        "backends.line",
        "backends.lines",
        "backends.request_head",
        "backends.resolver",
        "backends.session",
        "backends.wire",
    },
    {"tools.mcp.life", "tools.mcp.server", "tools.mcp.session", "tools.mcp.transports"},
    {"backends.fleet", "backends.passage"},
    {"cluster.redis_link", "cluster.redis_settings"},
    {"observe.live.progress", "observe.seen"},
    {"swarm.second_opinion", "swarm.sending"},
    {"tools.builtin.sql", "tools.tool"},
    {"tools.fabric", "tools.session"},
    {"tools.tables", "tools.texts"},
]


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


def without_package(name: str) -> str:
    return name.removeprefix("batch_agent.")


def test_no_new_module_is_named_by_a_gerund_or_participle(source: Source) -> None:
    assert {without_package(name) for name in source.participle_names()} == MODULES_TO_RENAME


def test_no_new_public_class_name_is_defined_twice(source: Source) -> None:
    assert {name: len(modules) for name, modules in source.repeated_classes().items()} == CLASSES_TO_RENAME


def test_no_other_folder_has_more_than_20_modules(source: Source) -> None:
    large = {folder: count for folder, count in source.folders().items() if count > MAX_MODULES_IN_A_FOLDER}
    assert large.keys() == FOLDERS_TO_SPLIT.keys()
    assert {folder: count for folder, count in large.items() if count > FOLDERS_TO_SPLIT[folder]} == {}


def test_no_new_import_circle(source: Source) -> None:
    found = [{without_package(name) for name in circle} for circle in source.circles()]
    assert sorted(map(sorted, found)) == sorted(map(sorted, CIRCLES_TO_CUT))


def test_nothing_imports_in_a_circle_at_import_time(source: Source) -> None:
    assert source.circles(["top"]) == []


@pytest.mark.parametrize("stem", ["reading", "copy_listing", "asked", "told", "calls_made", "batched"])
def test_a_gerund_or_participle_is_found_in_the_last_part_of_a_name(stem: str) -> None:
    assert is_participle(stem)


@pytest.mark.parametrize("stem", ["circuit_breaker", "shared_store", "speed", "copy_seed", "routing", "string"])
def test_a_noun_is_not_taken_for_a_participle(stem: str) -> None:
    assert not is_participle(stem)


def test_every_exception_of_a_name_has_an_ending_that_needs_one() -> None:
    assert all(name.endswith("ing") and reason for name, reason in NOUNS_IN_ING.items())
    assert all(name.endswith("ed") for name in NOUNS_IN_ED)


def test_circles_that_share_a_module_are_one() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d", "f"}, "f": set[str]()}
    assert sorted(map(sorted, strong_components(edges))) == [["a", "b", "c"], ["d", "e"], ["f"]]
    edges["e"].add("a")
    assert sorted(map(sorted, strong_components(edges))) == [["a", "b", "c", "d", "e"], ["f"]]
