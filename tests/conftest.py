"""For all tests."""

import os
import signal
import sys

from hypothesis import settings

# A shell that runs the tests in the background has its children ignore Ctrl-C; those that tests start must not.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What Python compiles is kept, for the next run and for the programs that tests start: else each compiles all of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says something about the machine, and nothing about the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
