"""The commands, in the order in which people need them. Each is imported when it is called, and not before."""

from cyclopts import Group

from ..core.fast_dataclass import dataclass
from .options.help_groups import OPTIONS, OUTPUT


@dataclass(frozen=True, slots=True)
class Command:
    """What is known of a command without importing it."""

    name: str
    where: str
    """As module:function."""
    help: str
    """A line for the list of commands, then what else its own help says."""
    examples: tuple[str, ...] = ()
    heading: Group = OPTIONS
    """Of options that have no other."""


COMMANDS = (
    Command(
        "demo",
        "batch_agent.cli.commands.demo:demo",
        "See it work: 24 agents with a tool, on the embedded model.\n\n"
        "Each reads a file with the tool and answers with an object that is checked.",
    ),
    Command(
        "init",
        "batch_agent.cli.commands.init:init",
        "Make a starter project: a config file, a schema, a tool and inputs.\n\n"
        "It runs as it is, on the embedded model. Files that are there already are not touched.",
        ("batch-agent init reviews && cd reviews && batch-agent run",),
    ),
    Command(
        "run",
        "batch_agent.cli.commands.run:run",
        "Run one task over a list of inputs.\n\n"
        "Results are written as they come. Stopped or killed, the same command goes on where it was. Options can be in "
        "a file: batch.toml of the current folder where no --task is given, or --config FILE.",
        (
            'batch-agent run --task "Summarize: {text}" --inputs texts.jsonl',
            'batch-agent run --task "Describe {path}." --inputs docs/ --tools read_file',
            "batch-agent run --config batch.toml --backend vllm://127.0.0.1:8000",
        ),
        OUTPUT,
    ),
    Command(
        "resume",
        "batch_agent.cli.commands.resume:resume",
        "Go on with a run from its checkpoint, in any folder.\n\n"
        "It is the same command again: batch-agent run keeps it beside the progress.",
        ("batch-agent resume results.jsonl.checkpoint",),
    ),
    Command(
        "worker",
        "batch_agent.cli.commands.worker:worker",
        "Help with a run that was started elsewhere with --store.\n\n"
        "Reads from the server what the run asks, and works on its agents until nothing is left to do. What agents may "
        "use of this machine is named with --trust and --backend: batch-agent run prints the line. Stopped or killed, "
        "it loses nothing: others go on with what it had.",
        ("batch-agent worker --store redis://host:6379/0 --run reviews --trust my_tools:look",),
    ),
    Command(
        "inspect",
        "batch_agent.cli.commands.inspect:inspect",
        "Show what a run did, or what one of its agents did.\n\nAlso while it goes on.",
        ("batch-agent inspect results.jsonl.checkpoint --agent 3",),
    ),
    Command(
        "serve",
        "batch_agent.cli.commands.serve:serve",
        "Show a run in the browser, while it goes on or afterwards.\n\n"
        "Every agent's time, what was shared and saved, failures, and what each agent was asked, said and called.",
        ("batch-agent serve results.jsonl.checkpoint --open",),
    ),
    Command(
        "report",
        "batch_agent.cli.commands.report:report",
        "Write the report of a run again, from its log.\n\n"
        "A run leaves one in its checkpoint when it ends; this is for one that was killed, or that goes on.",
        ("batch-agent report results.jsonl.checkpoint --out report.html",),
    ),
    Command(
        "export",
        "batch_agent.cli.commands.export:export",
        "Write what a checkpoint holds as a table, one row per agent.\n\n"
        "Rows are those of the run, in the order of the inputs. Works while the run goes on.",
        ("batch-agent export results.jsonl.checkpoint --out results.csv",),
    ),
    Command(
        "plan",
        "batch_agent.cli.commands.plan:plan",
        "Say what a run will be: agents, tokens, memory, time and cost.\n\n"
        "Without a canary no model is asked, and the time is not known. The run compares at its end.",
        ("batch-agent plan --config batch.toml --canary 20",),
    ),
    Command(
        "lint",
        "batch_agent.cli.commands.lint:lint",
        "Say what the prompts of a run share, and what keeps them from it.\n\n"
        "No model is asked anything. Ends with 1 if something was found.",
    ),
    Command(
        "doctor",
        "batch_agent.cli.commands.doctor:doctor",
        "Ask a backend what it can do, and say what would make it better.\n\n"
        "Sends a handful of short requests (some 1,300 tokens in all). Ends with 1 if the backend cannot be used.",
        ("batch-agent doctor vllm://127.0.0.1:8000",),
    ),
    Command(
        "sim",
        "batch_agent.cli.commands.sim:sim",
        "Serve a simulated engine: like vLLM, with scripted answers.\n\n"
        "It speaks the OpenAI protocol. What the options mean: docs/simulator.md.",
        ("batch-agent sim --port 8000 --max-num-seqs 64",),
    ),
)
