"""The files of the page that shows a run."""

from importlib.resources import files

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
INDEX = "index.html"


def page_files() -> dict[str, tuple[str, str]]:
    """By name: what kind of content it is, and its text."""
    found = {}
    for each in (files("batch_agent.observe.report") / "page").iterdir():
        kind = _KINDS.get(f".{each.name.rpartition('.')[2]}")
        if kind is not None:
            found[each.name] = (kind, each.read_text(encoding="utf-8"))
    return found
