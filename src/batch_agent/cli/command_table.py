"""Table of commands, in the order of the help. A command's module is imported only when the command is called."""

from cyclopts import Group

from ..core.fast_dataclass import dataclass
from .options.help_groups import OPTIONS, OUTPUT


@dataclass(frozen=True, slots=True)
class Command:
    """Description of a command, available without importing its module."""

    name: str
    target: str
    """The function, as module:function."""
    help: str
    """One line for the list of commands, then the rest of the command's help."""
    examples: tuple[str, ...] = ()
    group: Group = OPTIONS
    """Help group of the options that have no group of their own."""


COMMANDS = (
    Command(
        "demo",
        "batch_agent.cli.commands.demo:demo",
        "A tour on the embedded model: 24 agents, a kill and a resume.\n\n"
        "Each agent reads a file with the tool and answers with a validated object. The process is killed after a "
        "third of the results, and the run resumed from its checkpoint.",
    ),
    Command(
        "init",
        "batch_agent.cli.commands.init:init",
        "Create a starter project: config, schema, tool and inputs.\n\n"
        "It runs without changes, on the embedded model. Existing files are not overwritten.",
        ("batch-agent init reviews && cd reviews && batch-agent run",),
    ),
    Command(
        "run",
        "batch_agent.cli.commands.run:run",
        "Run one task over a list of inputs.\n\n"
        "Results are written as they finish. To resume a run that was stopped or killed, run the same command again. "
        "Options can be set in a file: --config FILE, or batch.toml in the current directory if --task is not given.",
        (
            'batch-agent run --task "Summarize: {text}" --inputs texts.jsonl',
            'batch-agent run "docs/*.md" --task "Describe {path}." --tools read_file --limit 3',
            'zcat texts.jsonl.gz | batch-agent run - --task "Summarize: {text}" --key id --out summaries.csv',
            "batch-agent run --config batch.toml --backend vllm://127.0.0.1:8000",
        ),
        OUTPUT,
    ),
    Command(
        "resume",
        "batch_agent.cli.commands.resume:resume",
        "Resume a run from its checkpoint, from any directory.\n\n"
        "Runs the same command again: batch-agent run stores it in the checkpoint.",
        ("batch-agent resume results.jsonl.checkpoint",),
    ),
    Command(
        "ctl",
        "batch_agent.cli.commands.ctl:ctl",
        "Change a run while it is running.\n\n"
        "Limits, budget and deadline; pause and resume; cancel agents and add inputs. Prints what the run answers: old "
        "and new values. Only the user who runs it can change it.",
        (
            "batch-agent ctl results.jsonl.checkpoint --max-inflight 8 --max-usd 20",
            "batch-agent ctl results.jsonl.checkpoint --add more.jsonl",
        ),
    ),
    Command(
        "worker",
        "batch_agent.cli.commands.worker:worker",
        "Join a run that was started elsewhere with --store.\n\n"
        "Reads the run's options from the server, and runs its agents until no work is left. --trust and --backend "
        "name what agents may use on this machine: batch-agent run prints the command to copy. If the worker is "
        "stopped or killed, other workers take over its agents.",
        ("batch-agent worker --store redis://host:6379/0 --run reviews --trust my_tools:search",),
    ),
    Command(
        "template",
        "batch_agent.cli.cluster_templates.template_command:template",
        "Print a job file that starts workers on a cluster.\n\n"
        "For Kubernetes, KubeRay, Slurm and SkyPilot. Nothing is sent to a cluster: redirect the output to a file, "
        "read it, and submit it as its first lines show.",
        (
            "batch-agent template kubernetes --run reviews --image registry.example/agents:1 > workers.yaml",
            "batch-agent template slurm --run reviews --workers 16 --trust my_tools:search > workers.sh",
        ),
    ),
    Command(
        "inspect",
        "batch_agent.cli.commands.inspect:inspect",
        "Show what a run, or one of its agents, did.\n\nAlso works during the run.",
        ("batch-agent inspect results.jsonl.checkpoint --agent 3",),
    ),
    Command(
        "serve",
        "batch_agent.cli.commands.serve:serve",
        "Show a running or finished run in the browser.\n\n"
        "Shows the timeline of every agent, what was shared and saved, failures, and each agent's messages and tool "
        "calls.",
        ("batch-agent serve results.jsonl.checkpoint --open",),
    ),
    Command(
        "report",
        "batch_agent.cli.commands.report:report",
        "Rewrite the report of a run from its event log.\n\n"
        "A run writes its report when it ends; this command is for a run that was killed or is still running.",
        ("batch-agent report results.jsonl.checkpoint --out report.html",),
    ),
    Command(
        "export",
        "batch_agent.cli.commands.export:export",
        "Export a checkpoint as a table, one row per finished agent.\n\n"
        "Rows are the same as in the results of the run, in input order. Also works during the run.",
        ("batch-agent export results.jsonl.checkpoint --out results.csv",),
    ),
    Command(
        "score",
        "batch_agent.cli.commands.score:score",
        "Score the answers of a run, without new answers.\n\n"
        "The scores are kept with the run: its exports, its report and comparisons have them.",
        ("batch-agent score results.jsonl.checkpoint --score exact:label",),
    ),
    Command(
        "compare",
        "batch_agent.cli.commands.compare:compare",
        "Compare two runs, or the models of one run.\n\n"
        "Shows agreement, paired differences of scores with intervals, cost, time, and the inputs whose answers "
        "changed. A run is a checkpoint, a run on a Redis server, or a .jsonl file of results.",
        ("batch-agent compare before.jsonl.checkpoint after.jsonl.checkpoint --field label",),
    ),
    Command(
        "plan",
        "batch_agent.cli.commands.plan:plan",
        "Forecast a run: agents, tokens, memory, time and cost.\n\n"
        "Without a canary, no request is sent to the model and the time cannot be predicted. When the run ends, it "
        "compares itself with the forecast.",
        ("batch-agent plan --config batch.toml --canary 20",),
    ),
    Command(
        "preview",
        "batch_agent.cli.commands.preview:preview",
        "Show the first requests of a run as they would be sent.\n\n"
        "Sends nothing, and the server need not be up. API keys are masked.",
        ("batch-agent preview --config batch.toml --limit 1 --backend vllm://127.0.0.1:8000",),
    ),
    Command(
        "lint",
        "batch_agent.cli.commands.lint:lint",
        "Show the prefix that prompts share, and what prevents more.\n\n"
        "Sends no requests to a model. The exit status is 1 if there are findings.",
    ),
    Command(
        "doctor",
        "batch_agent.cli.commands.doctor:doctor",
        "Check what a backend supports, and suggest improvements.\n\n"
        "Sends a few short requests (about 1,300 tokens in total). The exit status is 1 if the backend cannot be used.",
        ("batch-agent doctor vllm://127.0.0.1:8000",),
    ),
    Command(
        "run-batch",
        "batch_agent.cli.commands.run_batch:run_batch_file",
        "Answer the requests of a batch file on any backend.\n\n"
        "The file has the format of OpenAI's batches and of vllm run-batch, and so has the output. Responses are "
        "written as they arrive; to continue after a stop or a crash, run the same command again.",
        ("batch-agent run-batch requests.jsonl -o responses.jsonl --backend vllm://127.0.0.1:8000",),
    ),
    Command(
        "serve-batches",
        "batch_agent.cli.commands.serve_batches:serve_batch_api",
        "Serve OpenAI's batch API over any backend.\n\n"
        "OpenAI's client works with it unchanged: /v1/files and /v1/batches. Files, batches and responses are kept "
        "in a directory; after a crash, the server continues where it stopped.",
        ("batch-agent serve-batches --backend vllm://127.0.0.1:8000 --folder batches",),
    ),
    Command(
        "sim",
        "batch_agent.cli.commands.sim:sim",
        "Serve a simulated vLLM engine with scripted answers.\n\n"
        "It serves the OpenAI API. The options are documented in docs/simulator.md.",
        ("batch-agent sim --port 8000 --max-num-seqs 64",),
    ),
)
