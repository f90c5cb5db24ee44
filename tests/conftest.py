"""For all tests."""

import os
import signal
import sys

# A shell that runs the tests in the background has its children ignore Ctrl-C; those that tests start must not.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What Python compiles is kept, for the next run and for the programs that tests start: else each compiles all of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
