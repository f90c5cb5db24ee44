"""Every example runs as its docstring says."""

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.forked_programs import Programs
from tests.support.redis_server import RedisServer, redis_server

from batch_agent.sim import Script, SimConfig, SimServer

__all__ = ["redis_server"]

EXAMPLES = Path(__file__).parents[2] / "examples"
TOOK = re.compile(r"[\d.]+ s,")


@pytest.fixture
def sim() -> Iterator[SimServer]:
    """Its model calls everything key-0."""
    with SimServer(SimConfig(zero_latency=True), Script(keys=1)) as server:
        yield server


def run(name: str, *words: object, cwd: Path) -> str:
    """What an example prints, without how long its stages took. Each is started so once."""
    line = [sys.executable, str(EXAMPLES / name), *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return TOOK.sub("", done.stdout)


def run_quickly(programs: Programs, name: str, *words: object, cwd: Path) -> str:
    """The same in a process that starts at once."""
    code = f"import runpy; runpy.run_path({str(EXAMPLES / name)!r}, run_name='__main__')"
    done = programs.start(code, *map(str, words), cwd=cwd)
    assert done.wait() == 0, done.stderr.read_text()
    return TOOK.sub("", done.stdout.read_text())


def run_again(name: str, *words: object, cwd: Path, sim: SimServer, programs: Programs) -> str:
    """What it prints the second time, for which nothing may be asked."""
    served = sim.metrics()["vllm:request_success_total"]
    said = run_quickly(programs, name, *words, cwd=cwd)
    # One more: whether the server takes tools is tried at every start.
    assert sim.metrics()["vllm:request_success_total"] - served <= 1
    return said


def write_note(corpus: Path, name: str = "cache.md", text: str = "A cache keeps what was computed.") -> None:
    corpus.mkdir(exist_ok=True)
    (corpus / name).write_text(f"# On {name}\n\nSource: A book, 2020\n\n{text}\n")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_read_in_a_minute(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 60


def test_every_note_of_the_corpus_has_a_title_and_a_source() -> None:
    notes = sorted((EXAMPLES / "corpus").glob("*.md"))
    assert len(notes) == 8
    for note in notes:
        title, source, *text = note.read_text().split("\n\n")
        assert title.startswith("# "), note.name
        assert source.startswith("Source: "), note.name
        assert 100 <= len(" ".join(text).split()) <= 250, note.name


@pytest.mark.slow
def test_sort_notes_answers_for_every_file(tmp_path: Path, sim: SimServer) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("I love the lamp.")
    lines = run("sort_notes.py", tmp_path, "--backend", sim.url, cwd=tmp_path).splitlines()
    assert [line.split("\t")[0] for line in lines] == ["0.txt", "1.txt", "2.txt"]
    assert all("sentiment=" in line for line in lines)


@pytest.mark.slow
def test_shared_flow_sums_up_what_the_worker_and_the_caller_sorted(
    tmp_path: Path, sim: SimServer, programs: Programs, redis_server: RedisServer
) -> None:
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text(f"Lamp {number} is broken.")
    words = (tmp_path, "--store", redis_server.url, "--run-id", tmp_path.name, "--backend", sim.url)
    said = run("shared_flow.py", *words, cwd=tmp_path)
    assert "note: 12 agents" in said
    assert run_again("shared_flow.py", *words, cwd=tmp_path, sim=sim, programs=programs) == said
    assert run_quickly(programs, "shared_flow.py", *words, "--work", cwd=tmp_path) == ""  # no work is left


@pytest.mark.slow
def test_code_review_judges_each_finding_and_reports_where_one_is_left(
    tmp_path: Path, sim: SimServer, programs: Programs
) -> None:
    for path in ("shop/cart.py", "shop/users.py", "tools/backup.sh", ".venv/lib.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(f"path = '{path}'\n" * 200)
    (tmp_path / "tools" / "empty.py").write_text("")  # it has no line that a finding could be about
    words = (tmp_path, "--backend", sim.url)
    said = run("code_review.py", *words, cwd=tmp_path)
    judged = re.findall(r"^(\w+)/(\S+):\d+: .* is_true=(\w+)$", said, re.MULTILINE)
    assert [name for _, name, _ in judged] == ["cart.py", "users.py", "backup.sh"]
    reported = re.findall(r"^(\w+)/: \w", said, re.MULTILINE)
    assert set(reported) == {folder for folder, _, is_true in judged if is_true == "True"}
    assert "review: 4 agents, 0 failed" in said
    assert run_again("code_review.py", *words, cwd=tmp_path, sim=sim, programs=programs) == said


@pytest.mark.slow
@pytest.mark.parametrize("is_shown", [True, False])
def test_paper_research_says_whether_a_source_was_shown(
    is_shown: bool, tmp_path: Path, sim: SimServer, programs: Programs
) -> None:
    write_note(tmp_path / "corpus", text="The cache of key-0." if is_shown else "No.")
    expected = "shown to the agent" if is_shown else "which the agent has not seen"
    words = (tmp_path / "corpus", "--ask", "What is a cache?", "--ask", "Who keeps it?", "--backend", sim.url)
    started = run if is_shown else partial(run_quickly, programs)
    said = started("paper_research.py", *words, cwd=tmp_path)
    assert "What is a cache?\n" in said
    assert "Who keeps it?\n" in said
    assert said.count(f"  Source: cache.md, {expected}\n") == 2
    assert run_again("paper_research.py", *words, cwd=tmp_path, sim=sim, programs=programs) == said


@pytest.mark.slow
@pytest.mark.parametrize("is_opened", [True, False])
def test_auto_research_lists_only_sources_that_were_opened(
    is_opened: bool, tmp_path: Path, sim: SimServer, programs: Programs
) -> None:
    write_note(tmp_path / "corpus")
    if is_opened:
        (tmp_path / "corpus" / "key-0").symlink_to("cache.md")
    words = ("caches", "--corpus", tmp_path / "corpus", "--backend", sim.url)
    started = run if is_opened else partial(run_quickly, programs)
    said = started("auto_research.py", *words, cwd=tmp_path)
    survey = (tmp_path / "survey.md").read_text()
    assert survey.startswith("# caches\n")
    source = "On cache.md. Source: A book, 2020" if is_opened else "not opened: no source"
    assert survey.endswith(f"- cache.md: {source}\n")
    assert run_again("auto_research.py", *words, cwd=tmp_path, sim=sim, programs=programs) == said
    assert (tmp_path / "survey.md").read_text() == survey
