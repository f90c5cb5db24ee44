"""For all tests."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from tests.support.forked_sims import ForkedSims
from tests.support.leaks import LeakCheck
from tests.support.quarantine import Quarantine

from batch_agent.sim import process

HERE = Path(__file__).parent

# A worker of pytest-xdist does not take its million objects apart at the end, one by one: that takes seconds.
# Registered first, so called last. Processes that it forks end as they want.
_WORKER = os.getpid()
if "PYTEST_XDIST_WORKER" in os.environ:
    atexit.register(lambda: os._exit(0) if os.getpid() == _WORKER else None)

# A shell that runs the tests in the background has its children ignore Ctrl-C; those that tests start must not.
signal.signal(signal.SIGINT, signal.default_int_handler)
_HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

# What tests and their programs keep (a user's secret) and leave behind (checkpoints of processes that are killed, files
# of tools) is in a folder of this process, which ends with it. What pytest keeps of failed tests stays where it was.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
os.environ.setdefault("RAY_TMPDIR", tempfile.gettempdir())  # with its sockets, whose paths must be short
_FOLDER = tempfile.mkdtemp(prefix="batch-agent-tests-")
os.chmod(_FOLDER, 0o711)  # tests of other users pass through it
os.environ["TMPDIR"] = tempfile.tempdir = _FOLDER
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="config-")
atexit.register(lambda: shutil.rmtree(_FOLDER, ignore_errors=True) if os.getpid() == _WORKER else None)

# What Python compiles is kept, for the next run and for the programs that tests start: else each compiles all of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if hasattr(os, "pidfd_open"):
    setattr(process, "_spawn", ForkedSims().start)  # noqa: B010 - its type is that of a Popen

# How long an example takes says something about the machine, and nothing about the code. Examples differ from run to
# run: many short runs find what one long run does, and the nightly run is long.
settings.register_profile("short", deadline=None, max_examples=20)
settings.register_profile("nightly", deadline=None, max_examples=1_000)
settings.load_profile("short")

# Collecting makes a million objects that stay until the end. The garbage collector would find nothing in them: in a
# quarter of the time of collecting, and in half a second of each full collection after it.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeakCheck(), "leaks")
    config.pluginmanager.register(Quarantine(HERE / "quarantine.toml", HERE.parent), "quarantine")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.get_freeze_count = lambda: 1_000_000  # each run asks at its end, and Python counts them one by one
    gc.enable()


# A command that is called in this process leaves the handlers of signals as they are good for its end: Ctrl-C would end
# a worker of pytest-xdist at once, in a later test. So they are set again after each test, and before it: fixtures call
# commands too. Hooks, since a fixture of each of ten thousand tests takes seconds.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _set_handlers()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    _set_handlers()
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()  # what the file has imported stays too


def _set_handlers() -> None:
    for number, handler in _HANDLERS.items():
        signal.signal(number, handler)
