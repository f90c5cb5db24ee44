"""Published results made again: all of a group, one command after the other.

    python -m benchmarks                       # which results there are, from which commit, and the command of each
    python -m benchmarks virtual cores         # make those of these groups, where src/ has changed since their commit
    python -m benchmarks cores --only tools,flows

Groups: see benchmarks/catalog.py. A command that fails does not stop the others; the program then ends with 1.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.catalog import CATALOG, GROUPS, Published

_PLUGIN = Path(__file__).parents[1] / "packages" / "batch-agent-vllm" / "src"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--only", help="some results of these groups, by the names of their files")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.groups) - set(GROUPS)):
        parser.error(f"{unknown[0]}: no such group; there are {', '.join(GROUPS)}")
    names = asked.only.split(",") if asked.only else [each.result for each in CATALOG]
    if unknown := sorted(set(names) - {each.result for each in CATALOG}):
        parser.error(f"--only {unknown[0]}: no such result; `python -m benchmarks` lists them")
    if asked.groups:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the command under way ends too
        sys.exit(_make([each for each in CATALOG if each.group in asked.groups and each.result in names]))
    for each in CATALOG:
        commits = ", ".join(dict.fromkeys(commit or "none" for commit in commits_of(each)))
        print(f"{each.result:28} {commits:10} {each.group:9} python -m benchmarks.{each.command}")


def _make(wanted: Sequence[Published]) -> int:
    failed = list[str]()
    for each in wanted:
        if not each.is_complete:
            print(f"{each.result}: run by hand: python -m benchmarks.{each.command}", flush=True)
        elif all(map(is_current, commits := commits_of(each))):
            print(f"{each.result}: the source is still that of {commits[0]}", flush=True)
        else:
            started = time.monotonic()
            status = subprocess.run([sys.executable, "-m", *_module(each)], env=_environment(), check=False).returncode
            print(f"{each.result}: {time.monotonic() - started:.0f} s, exit status {status}", flush=True)
            failed += [each.result] if status else []
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


def is_current(commit: str | None) -> bool:
    """Whether `src/` is the same as at this commit."""
    return commit is not None and report.git("diff", "--quiet", commit, "--", "src").returncode == 0


def _module(published: Published) -> list[str]:
    module, *words = published.words
    return [f"benchmarks.{module}", *words]


def _environment() -> dict[str, str]:
    """That of this process, with the package of the vLLM plugin, which one of the benchmarks simulates."""
    paths = [str(_PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def commits_of(published: Published) -> list[str | None]:
    """Of the file of results, then of its older parts. None without a file, or where the source was changed."""
    path = report.RESULTS / f"{published.result}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    parts = found.get("parts", {}).values()
    times = [found, *(part["from"] for part in parts if "from" in part)]
    return [None if time.get("changed_files") else time.get("commit") for time in times]


if __name__ == "__main__":
    main()
