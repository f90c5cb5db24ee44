"""Many endpoints that serve one run together."""
