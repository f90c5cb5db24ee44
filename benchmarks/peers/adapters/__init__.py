"""How each peer does the work: a module with `async def run(work, tally)`, as its documentation says to use it."""
