"""Quarantine: tests listed in tests/quarantine.toml run, and their failures are shown but do not fail the run."""

import datetime
import re
import tomllib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

_SECTION = "quarantine"


@dataclass(frozen=True)
class QuarantinedTest:
    id: str
    reason: str
    date: datetime.date

    def covers(self, node_id: str) -> bool:
        return node_id == self.id or node_id.startswith(f"{self.id}[")


class Quarantine:
    """Plugin for a list of tests. Raises UsageError for an entry that is incomplete or names no test."""

    def __init__(self, file: Path, root: Path) -> None:
        tests = tomllib.loads(file.read_text()).get("test", [])
        try:
            self._tests = [QuarantinedTest(**each) for each in tests]
        except TypeError as error:
            raise pytest.UsageError(f"{file.name}: a test has an id, a reason and a date ({error}).") from None
        for test in self._tests:
            if not (test.reason and isinstance(test.date, datetime.date) and _exists(test.id, root)):
                raise pytest.UsageError(f"{file.name}: there is no test {test.id!r}, or it has no reason or date.")

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        test = next((test for test in self._tests if test.covers(item.nodeid)), None)
        if test is not None and report.failed:
            # As an expected failure, which pytest-xdist carries over to the process that reports.
            report.outcome = "skipped"
            report.wasxfail = f"quarantined on {test.date}: {test.reason}"
            report.sections.append((_SECTION, ""))
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        reports = terminalreporter.getreports("xfailed")
        failed = [report for report in reports if any(name == _SECTION for name, _ in report.sections)]
        if failed:
            terminalreporter.section("quarantined tests that failed")
        for report in failed:
            terminalreporter.write_line(f"{report.nodeid} ({report.when}), {report.wasxfail}")
            terminalreporter.write_line(report.longreprtext)


def _exists(node_id: str, root: Path) -> bool:
    path, _, name = node_id.partition("::")
    function = name.rpartition("::")[2].partition("[")[0]
    file = root / path
    return file.is_file() and re.search(rf"def {re.escape(function)}\(", file.read_text()) is not None
