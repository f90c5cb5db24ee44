"""The tables of docs/migration/from-0.2.md: the names that errors explain. `python -m scripts.migration_tables`."""

from pathlib import Path

from batch_agent.core.validation import FORMER

PAGE = Path(__file__).parents[1] / "docs" / "migration" / "from-0.2.md"


def table(kind: str) -> str:
    """One row for each name of 0.2 that is refused, with the words of the error."""
    rows = [f"| `{name}` | {now[0].upper()}{now[1:]}. |" for name, now in FORMER[kind].items()]
    return "\n".join(["| 0.2 | now |", "|---|---|", *rows])


def written(page: str) -> str:
    """The page with its tables as they should be."""
    for kind in FORMER:
        before, start, rest = page.partition(f"<!-- table: {kind} -->\n")
        _, end, after = rest.partition("<!-- /table -->")
        page = f"{before}{start}{table(kind)}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
