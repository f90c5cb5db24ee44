"""Table about the lane batch beside the lane standard."""

from benchmarks.render.cells import Json, results, seconds, table


def lanes() -> str:
    rows = [
        [
            row["service"],
            f"{row['agents']:,}",
            f"{row['longest_turns']}",
            f"{row['batch']['requests']:,}",
            f"{row['batch']['waves']}",
            f"{row['cost_ratio']:.3f}",
            "yes" if row["same_results"] else "no",
            seconds(row["batch"]["seconds"]),
            seconds(row["standard"]["seconds"]),
        ]
        for row in results("lanes")["cases"]
    ]
    head = ["batches of", "agents", "turns at most", "requests", "waves", "cost / live", "same results", "time", "live"]
    return table(head, rows)


def targets() -> list[Json]:
    found = results("lanes")
    least, most = found["target_cost_ratio"]
    costs = [
        {
            "what": f"{row['service']}: cost in batches / live",
            "least": least,
            "most": most,
            "found": row["cost_ratio"],
            "is_met": least <= row["cost_ratio"] <= most,
        }
        for row in found["cases"]
    ]
    waves = [
        {
            "what": f"{row['service']}: waves",
            "least": None,
            "most": found["max_waves"],
            "found": row["batch"]["waves"],
            "is_met": row["batch"]["waves"] <= found["max_waves"],
        }
        for row in found["cases"]
    ]
    return [*costs, *waves]
