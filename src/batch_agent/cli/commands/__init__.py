"""Commands of `batch-agent`, one module each."""
