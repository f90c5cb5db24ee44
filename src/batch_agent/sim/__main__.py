"""`python -m batch_agent.sim '{"config": {...}, "script": {...}, "host": ..., "port": ...}'`, or any part of that."""

import sys

from .listen import serve
from .process import Launch

if __name__ == "__main__":
    launch = Launch.from_json(sys.argv[1] if len(sys.argv) > 1 else "{}")
    serve(launch.config, launch.script, launch.host, launch.port, until_stdin_ends=launch.until_stdin_ends)
