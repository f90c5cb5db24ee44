"""Benchmark of runs that several processes share: `python -m benchmarks.cluster`."""
