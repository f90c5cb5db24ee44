"""`python -m batch_agent` is the program `batch-agent`."""

from .cli import main

if __name__ == "__main__":
    main()
