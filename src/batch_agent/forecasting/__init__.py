"""Forecast of a run from its plan, a canary of a few real agents, and a simulation."""

from .behaviour import Runs, behaviour_of
from .calibration import ServerSpeeds, speeds_of
from .estimate import forecast

__all__ = ["Runs", "ServerSpeeds", "behaviour_of", "forecast", "speeds_of"]
