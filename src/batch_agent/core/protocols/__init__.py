"""Protocols of the engine: what other layers implement, a module for each seam."""
