"""dynamo.mocker with a tool-call parser in its model card: ModelRuntimeConfig has the field, the command line does not.

Runs in Dynamo's environment, not in ours; takes the mocker's own arguments.
"""

from typing import Any

import dynamo.mocker.main as mocker  # type: ignore[import-not-found, unused-ignore]

build_without_tools = mocker.build_runtime_config


def build_with_tools(arguments: Any) -> Any:
    block_size, runtime = build_without_tools(arguments)
    runtime.tool_call_parser = "hermes"
    return block_size, runtime


mocker.build_runtime_config = build_with_tools
mocker.main()
