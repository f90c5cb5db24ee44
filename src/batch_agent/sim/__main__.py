"""Serves a simulated engine: `batch-agent sim` for programs, with its options in one JSON object.

  python -m batch_agent.sim '{"config": {...}, "script": {...}, "host": ..., "port": ...}'

Any part may be left out. For people there is `batch-agent sim --help`; what the options mean is in docs/simulator.md.
"""

import sys

from .listener import serve
from .process import Launch


def main() -> None:
    arguments = sys.argv[1:] or ["{}"]
    if arguments[0] in ("-h", "--help"):
        print((__doc__ or "").strip())
        return
    try:
        launch = Launch.from_json(arguments[0])
    except (TypeError, ValueError) as error:
        sys.exit(f"python -m batch_agent.sim takes one JSON object; {arguments[0]!r} is not valid: {error}")
    serve(launch.config, launch.script, launch.host, launch.port, until_stdin_ends=launch.until_stdin_ends)


if __name__ == "__main__":
    main()
