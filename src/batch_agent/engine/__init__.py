"""The async core: runs agents against a backend through the protocols of core."""
