"""One run: validate its spec, open its resources, execute it."""
