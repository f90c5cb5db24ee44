"""python -m benchmarks.peers: see the package."""

import argparse
from pathlib import Path

from benchmarks.peers.batch_agent_only import ALONE
from benchmarks.peers.participants import PEERS
from benchmarks.peers.results_file import Kept
from benchmarks.peers.rounds import compared, parted
from benchmarks.peers.targets import targets
from benchmarks.peers.workloads import QUICK, WORKLOADS

_QUICK_ALONE = 0.02


def main() -> None:
    asked = _options()
    kept = Kept(asked.out, asked.commit)
    peers, is_quick = parted(asked.peers, PEERS, "peer"), asked.quick
    for part in parted(asked.only, [*WORKLOADS, *ALONE], "part"):
        if part in ALONE:
            kept.put(part, ALONE[part](asked.rounds, _QUICK_ALONE if is_quick else 1.0))
        else:
            workload = WORKLOADS[part].scaled(QUICK.get(part, 1.0)) if is_quick else WORKLOADS[part]
            kept.put(part, compared(part, workload, peers, asked.rounds))
    for one in targets(kept.parts):
        print(f"{one['what']}: {one['found']} ({'met' if one['is_met'] else 'MISSED'})", flush=True)
    print(asked.out or "nothing was written: there is no --out")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="BatchAgent beside its peers")
    parser.add_argument("--only", metavar="PARTS", help=f"some of {','.join([*WORKLOADS, *ALONE])}")
    parser.add_argument("--peers", metavar="NAMES", help=f"some of {','.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer agents: to see that it works, not how fast it is")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where results go; what is there of other parts stays")
    parser.add_argument("--commit", help="where there is no git to ask")
    return parser.parse_args()


if __name__ == "__main__":
    main()
