"""For all tests."""

import atexit
import os
import shutil
import signal
import sys
import tempfile

from hypothesis import settings

# A shell that runs the tests in the background has its children ignore Ctrl-C; those that tests start must not.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The programs of tests keep their secret in a folder of the tests, and not with the user's own.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="batch-agent-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# What Python compiles is kept, for the next run and for the programs that tests start: else each compiles all of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says something about the machine, and nothing about the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
