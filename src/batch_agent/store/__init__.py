"""Where facts and results live: in memory, or in a SQLite file that outlives the process."""
