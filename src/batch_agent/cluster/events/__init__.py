"""Events of a run that several processes share."""
