"""Views of a run: progress, report, metrics and traces. They consume its events and cannot change the run."""
