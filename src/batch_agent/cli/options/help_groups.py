"""The headings of `batch-agent run --help`, in their order. An option stands under one of them."""

from cyclopts import Group

WHAT = Group.create_ordered("What to do")
MODEL = Group.create_ordered("Model and server")
OPTIONS = Group.create_ordered("Options")
OUTPUT = Group.create_ordered("Output and progress")
REDUCE = Group.create_ordered("One answer from all results")
LIMITS = Group.create_ordered("Limits")
PROMPTS = Group.create_ordered("Prompts")
SHARING = Group.create_ordered("Sharing the work")
