"""Writes the tables of the docs and of README.md from benchmarks/results: `python -m benchmarks.render.tables`.

A table is between `<!-- table: NAME -->` and `<!-- /table -->`. A test compares the pages with what this script
renders, so that no number in a table is typed by hand."""

import re
from collections.abc import Callable

from benchmarks.catalog import CATALOG
from benchmarks.render import (
    batches,
    budget,
    capacity,
    cluster,
    coding,
    gpu_peers,
    kv_policy,
    kv_tiers,
    lanes,
    observability,
    peers,
    prompts,
    refusals,
    shared_server,
)
from benchmarks.render.cells import ROOT, Json, results, table

PAGES = (
    ROOT / "docs" / "benchmarks.md",
    ROOT / "docs" / "clusters.md",
    ROOT / "docs" / "guides" / "shared-results.md",
    ROOT / "README.md",
)
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def written(page: str) -> str:
    """The page with all its tables rendered from the results. Raises KeyError for an unknown table."""
    return _TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


def main() -> None:
    for page in PAGES:
        page.write_text(written(page.read_text()))


def _machines() -> str:
    rows = []
    for published in sorted(CATALOG, key=lambda each: each.result):
        found = results(published.result)
        when = _when(found)
        rows.append([f"`{published.result}.json`", *when, f"`{published.command.partition(' --out')[0]}`"])
        for earlier, parts in _earlier_parts(found).items():
            if list(earlier) != when:
                rows.append([f"... {', '.join(parts)}", *earlier, ""])
    return table(["results", "commit", "date", "machine", "`python -m benchmarks.` ..."], rows)


def _earlier_parts(found: Json) -> dict[tuple[str, ...], list[str]]:
    """The parts of a file that were measured at another time than the last ones, by commit, date and machine."""
    by_time: dict[tuple[str, ...], list[str]] = {}
    for part, numbers in found.get("parts", {}).items():
        if "from" in numbers:
            by_time.setdefault(tuple(_when(numbers["from"])), []).append(part)
    return by_time


def _when(found: Json) -> list[str]:
    machine = found["machine"]
    where = f"{machine['cores']} cores, {machine['arch']}, Python {machine['python']}"
    changed = found.get("changed_files") or 0
    commit = f"`{found['commit']}`" + (f" and {changed} changed files" if changed else "")
    return [commit, found["date"], f"{found['gpu'].split(',')[0]}; {where}" if "gpu" in found else where]


def _misses() -> str:
    rows = []
    for name, targets in (
        ("scheduling", results("scheduling")["targets"]),
        ("flows", results("flows")["targets"]),
        ("pools", results("pools")["simulated"]["targets"]),
        ("cluster", cluster.targets()),
        ("peers", peers.targets()),
        ("refusals", refusals.targets()),
        ("budget", budget.targets()),
        ("lanes", lanes.targets()),
        ("shared_results", results("shared_results")["targets"]),
        ("kv_policy", results("kv_policy")["targets"]),
    ):
        rows += [[name, *_target(one)] for one in targets if not one["is_met"]]
    return table(["benchmark", "measure", "target", "measured"], rows)


def _target(one: Json) -> list[str]:
    if "target" in one:  # scheduling: the target ends with its comparison
        what, _, sign = one["target"].rpartition(" ")
        return [f"{one['case']}: {what}", f"{sign} {one['limit']}", str(one["ours"])]
    if "shape" in one:
        return [f"{one['shape']}: stages / flow, wall", f">= {one['least']}", str(one["gain"])]
    bounds = [f"{sign} {one[end]}" for sign, end in ((">=", "least"), ("<=", "most")) if one[end] is not None]
    return [one["what"], ", ".join(bounds), str(one["found"])]


TABLES: dict[str, Callable[[], str]] = {
    "machines": _machines,
    "misses": _misses,
    "readme_gains": shared_server.readme_gains,
    "readme_costs": peers.readme_costs,
    "resident": shared_server.resident,
    "inflight": shared_server.inflight,
    "prefix": shared_server.prefix,
    "scheduling": shared_server.scheduling,
    "keep_warm": shared_server.keep_warm,
    "kv_hints": shared_server.kv_hints,
    "kv_policy": kv_policy.kv_policy,
    "kv_tiers": kv_tiers.kv_tiers,
    "kv_keep_warm": kv_tiers.kv_keep_warm,
    "layout": prompts.layout,
    "shared_results": prompts.shared_results,
    "placement": prompts.placement,
    "forecast": prompts.forecast,
    "compaction": prompts.compaction,
    "quality": prompts.quality,
    "peers_summary": peers.summary,
    "peers_single": peers.single,
    "peers_agents": peers.agents,
    "peers_cores": peers.cores,
    "peers_loops": peers.loops,
    "peers_workloads": peers.workloads,
    "peers_endpoints": peers.endpoints,
    "peers_alone": peers.alone,
    "capacity_checks": capacity.checks,
    "capacity_limits": capacity.limits,
    "capacity_whole": capacity.whole,
    "flows": batches.flows,
    "pools": batches.pools,
    "real_pools": batches.real_pools,
    "real_peers": gpu_peers.real_peers,
    "refusals": refusals.refusals,
    "budget": budget.budget,
    "lanes": lanes.lanes,
    "tools": batches.tools,
    "checkpoint": batches.checkpoint,
    "cluster_scaling": cluster.scaling,
    "cluster_cost": cluster.cost,
    "cluster_tools": cluster.tools,
    "cluster_faults": cluster.faults,
    "coding_prefix": coding.prefix,
    "coding_cost": coding.cost,
    "watching": observability.watching,
    "real_watching": observability.real_watching,
    "dashboard": observability.dashboard,
}


if __name__ == "__main__":
    main()
