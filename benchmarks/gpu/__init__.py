"""Measurements on a GPU: BatchAgent and a plain loop, on the same vLLM, with the same words.

The models have a real shape and random weights, so what they say is noise. Times do not depend on what is said, so
answers are played (`played.py`): the server works, and a script says what came of it.
"""
