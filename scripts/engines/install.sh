#!/usr/bin/env bash
# Installs the real engines for `make test-engines`, with the Python that will run the tests. Repeating it is cheap.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${VENV:-.venv}/bin/python"
[ -x "$python" ] || python="${PYTHON:-python3}"
exec "$python" -m scripts.engines.install
