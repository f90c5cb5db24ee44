"""Map over a Ray Dataset: an agent for each row, as an operator of Ray Data."""

import secrets
from collections.abc import Mapping
from typing import Any

import ray
from ray import cloudpickle
from ray.data import ActorPoolStrategy, Dataset

from ..core.errors import SpecError
from ..core.spec import BatchSpec
from ..run.setup import RunSetup
from ..version import __version__
from .block_operator import BlockOperator, OperatorConfig
from .deployment import start_coordinator
from .serialization import serialize_spec, spec_for_workers

_OLDEST_RAY = (2, 60)
_BLOCKS_AT_ONCE = 2
"""Number of blocks that an actor runs at the same time: while the last agents of one block end, those of the next one
begin."""


def map_dataset(
    dataset: Any, spec: BatchSpec, prefix: str | None, actor_options: Mapping[str, Any] | None = None
) -> Any:
    """The dataset with the columns of the results. Nothing is sent before it is consumed. `prefix`: as in
    `OperatorConfig`. Raises SpecError."""
    if not isinstance(dataset, Dataset):
        raise SpecError(
            f"BatchAgent.map takes a Ray Dataset (ray.data.read_parquet(...)), got {type(dataset).__name__}. For other "
            "inputs use BatchAgent.run(inputs=...)."
        )
    if tuple(map(int, ray.__version__.split(".")[:2])) < _OLDEST_RAY:
        raise SpecError(
            f"BatchAgent.map needs Ray 2.60 or newer, this is {ray.__version__}: pip install -U 'ray[data]'."
        )
    _check(spec)
    RunSetup.validate(spec, None, input_fields=())
    if not ray.is_initialized():
        ray.init()
    config = OperatorConfig(
        spec=serialize_spec(spec_for_workers(spec), cloudpickle.dumps),
        version=__version__,
        name=secrets.token_hex(6),
        checkpoint_dir=None if spec.checkpoint_dir is None else str(spec.checkpoint_dir.absolute()),
        prefix=prefix,
    )
    workers = spec.distribution.workers
    pool = {"min_size": 1} if workers is None else {"size": workers}
    return dataset.map_batches(
        BlockOperator,
        fn_constructor_kwargs={"config": config, "coordinator": start_coordinator(_this_node(), None)},
        batch_size=None,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(
            **pool, max_concurrent_calls_per_actor=_BLOCKS_AT_ONCE, enable_true_multi_threading=True
        ),
        **{"num_cpus": 1, **(actor_options or {})},
    )


def _check(spec: BatchSpec) -> None:
    """Raises SpecError for options that a dataset provides itself, or that need all results in one place."""
    if spec.rows.selects or spec.rows.input_format is not None:
        raise SpecError(
            "BatchAgent.map takes all rows of the dataset: choose them with dataset.filter and dataset.limit instead "
            "of where=, limit= and sample=."
        )
    if spec.out is not None or spec.on_result is not None:
        raise SpecError(
            "BatchAgent.map returns a dataset: write it with dataset.write_parquet instead of out= and on_result=."
        )
    if spec.evaluation.samples != 1 or spec.evaluation.score:
        raise SpecError("BatchAgent.map returns one row for each row: omit samples= and score=.")
    if spec.distribution.store is not None:
        raise SpecError("BatchAgent.map keeps its facts on the nodes: omit store=.")


def _this_node() -> str:
    return str(ray.get_runtime_context().get_node_id())
