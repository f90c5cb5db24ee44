"""Views on a run, fed by its events; nothing here can change the run."""
