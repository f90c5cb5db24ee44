"""Report of a run: one self-contained HTML file."""

import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...atomic_file import atomic_write
from ..event_codec import to_json
from .log_follower import LogFollower

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
INDEX = "index.html"


def page_files() -> dict[str, tuple[str, str]]:
    """Content type and text of the page's files, by name."""
    found = {}
    for each in (files("batch_agent.observe.report") / "page").iterdir():
        kind = _KINDS.get(f".{each.name.rpartition('.')[2]}")
        if kind is not None:
            found[each.name] = (kind, each.read_text(encoding="utf-8"))
    return found


REPORT = "report.html"
_STYLE = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
_SCRIPT = re.compile(r'<script src="([^"]+)" defer></script>\s*')
_ALLOWED = re.compile(r"script-src [^;\"]*")
_DATA = '<script type="application/json" id="run"></script>'


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Writes the report of the run in this directory from its event log. Also works for a running or killed run. Raises
    StoreError if there is no log, SpecError for a path that cannot be written, and OSError."""
    follower = LogFollower(folder, fresh=0.0)
    follower.read_all()
    path = out or folder / REPORT
    write_model(follower.model(), path, is_private=out is None)
    return path


def write_model(model: Mapping[str, Any], path: Path, *, is_private: bool = True) -> None:
    """Writes the report. Raises SpecError for a path that cannot be written, and OSError."""
    with atomic_write(path, is_private=is_private) as file:
        file.write(report_of(model))


def report_of(model: Mapping[str, Any]) -> bytes:
    """The page with a run's model. Its scripts are inlined at the end, and the content security policy allows no
    others."""
    page = {name: text for name, (_, text) in page_files().items()}
    html = _STYLE.sub(lambda found: f"<style>\n{page[found[1]]}</style>", page[INDEX])
    scripts = [page[name].replace("</script", "<\\/script") for name in _SCRIPT.findall(html)]
    hashes = " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in scripts)
    html = _ALLOWED.sub(lambda _: f"script-src {hashes}", _SCRIPT.sub("", html), count=1)
    before, found, after = html.partition(_DATA)
    assert found, "the page has an element for the run"
    data = to_json(model).replace(b"<", b"\\u003c")  # which must not end the script element
    tag, end = _DATA.removesuffix("</script>"), "</script>"
    inline = "".join(f"<script>{text}</script>\n" for text in scripts)
    rest = after.replace("</body>", f"{inline}</body>", 1)
    return b"".join([before.encode(), tag.encode(), data, end.encode(), rest.encode()])
