"""Serves a simulated engine: `batch-agent sim` for programs, with its options in one JSON object.

  python -m batch_agent.sim '{"config": {...}, "script": {...}, "host": ..., "port": ...}'

Any part may be left out. For people there is `batch-agent sim --help`; what the options mean is in docs/simulator.md.
"""

import sys

from .process import Launch
from .serve import serve


def main() -> None:
    said = sys.argv[1:] or ["{}"]
    if said[0] in ("-h", "--help"):
        print((__doc__ or "").strip())
        return
    try:
        launch = Launch.from_json(said[0])
    except (TypeError, ValueError) as error:
        sys.exit(f"python -m batch_agent.sim takes one JSON object, and {said[0]!r} is none that it knows: {error}")
    serve(launch.config, launch.script, launch.host, launch.port, until_stdin_ends=launch.until_stdin_ends)


if __name__ == "__main__":
    main()
