"""What asyncio leaves open: time limits that cost little, and whose a cancellation is."""
