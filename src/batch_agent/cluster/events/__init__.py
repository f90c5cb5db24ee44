"""Events of a distributed run, shared between its processes."""
