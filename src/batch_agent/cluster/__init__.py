"""What the workers of one run share, wherever they are: work, facts, calls and limits."""
