"""The async core: runs agents against a backend through the seams of core.interfaces."""
