"""Evaluations: runs of several models, answers that are judged by a model, and scores of earlier runs."""
