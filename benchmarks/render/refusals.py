"""Table about servers that refuse requests."""

from benchmarks.render.cells import Json, results, seconds, table, times


def refusals() -> str:
    rows = [
        [
            row["name"],
            f"{row['agents']:,}",
            "none" if row["retry_after"] is None else f"{row['retry_after']:g} s",
            times(row["ratio"]),
            seconds(row["agents_seconds"]),
            seconds(row["loop_seconds"]),
            f"{row['agents_refused']:,.0f}, {row['loop_refused']:,.0f}",
        ]
        for row in results("refusals")["cases"]
    ]
    return table(["server", "agents", "Retry-After", "agents / loop", "agents", "loop", "refused"], rows)


def targets() -> list[Json]:
    """Random refusals cost agents no more than a loop; a real limit may, and is kept with fewer refusals."""
    found = results("refusals")
    return [
        {
            "what": f"{row['name']}, {row['agents']:,} agents: agents / loop",
            "least": None,
            "most": found["target"],
            "found": row["ratio"],
            "is_met": row["ratio"] <= found["target"],
        }
        for row in found["cases"]
    ]
