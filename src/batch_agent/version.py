"""Version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("batch-agent")
except PackageNotFoundError:  # the sources are on the path without an installation
    __version__ = "0+unknown"
