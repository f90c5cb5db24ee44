"""Templates of job files for cluster schedulers, and the renderer that fills them in."""
