"""For all tests."""

import signal

# A shell that runs the tests in the background has its children ignore Ctrl-C; those that tests start must not.
signal.signal(signal.SIGINT, signal.default_int_handler)
