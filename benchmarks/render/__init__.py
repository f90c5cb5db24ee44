"""Tables of docs/benchmarks.md and README.md from the results: `python -m benchmarks.render.tables`."""
