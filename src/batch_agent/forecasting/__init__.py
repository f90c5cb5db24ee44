"""What a run will be, before it: from its plan, from a few agents that were really run, and from a rehearsal."""

from .behaviour import Runs, behaviour_of
from .calibration import ServerSpeeds, speeds_of
from .estimate import forecast

__all__ = ["Runs", "ServerSpeeds", "behaviour_of", "forecast", "speeds_of"]
