"""Option groups of `batch-agent run --help`, in the order in which they are shown."""

from cyclopts import Group

TASK = Group.create_ordered("Task")
MODEL = Group.create_ordered("Model and server")
OPTIONS = Group.create_ordered("Options")
OUTPUT = Group.create_ordered("Output and progress")
EVALUATIONS = Group.create_ordered("Evaluation")
REDUCE = Group.create_ordered("Reduce")
LIMITS = Group.create_ordered("Limits")
PROMPTS = Group.create_ordered("Prompts")
DISTRIBUTED = Group.create_ordered("Distributed runs")
