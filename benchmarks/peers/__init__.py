"""BatchAgent beside what else people use: the same work, on the same server, in the same run, taken in turns.

    python -m benchmarks.peers [--only WORKLOADS] [--peers NAMES] [--rounds 3] [--quick] [--out FILE]

Each peer is a process of its own in an environment of its own; `work.py` says what it is asked, `adapters/` how each
of them does it. This package's `work`, `child` and `adapters` run in environments that have nothing of ours.
"""
