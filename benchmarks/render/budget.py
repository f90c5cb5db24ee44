"""Table about runs with a budget."""

from benchmarks.render.cells import Json, results, seconds, table, times


def budget() -> str:
    rows = [
        [
            row["name"],
            f"{row['agents']:,}",
            f"${row['max_usd']:g}",
            f"{row['before']:,}",
            times(row["ratio"]),
            seconds(row["budget_seconds"]),
            seconds(row["without_seconds"]),
            f"${row['max_usd_spent']:.3f}",
        ]
        for row in results("budget")["cases"]
    ]
    return table(
        ["agents", "number", "budget", "in flight before", "with / without", "with", "without", "spent at most"], rows
    )


def targets() -> list[Json]:
    found = results("budget")
    return [
        {
            "what": f"{row['name']}: with a budget / without",
            "least": None,
            "most": found["target"],
            "found": row["ratio"],
            "is_met": row["ratio"] <= found["target"],
        }
        for row in found["cases"]
    ]
