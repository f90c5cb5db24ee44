"""python read_mlflow.py URL, with MLflow's own Python: the spans of the last trace, as its client returns them."""

import json
import sys

import mlflow

mlflow.set_tracking_uri(sys.argv[1])
[trace] = mlflow.search_traces(locations=["0"], max_results=1, return_type="list")
spans = [
    {
        "name": span.name,
        "kind": span.span_type,
        "input": span.inputs,
        "output": span.outputs,
        "tokens": span.get_attribute("mlflow.chat.tokenUsage"),
        "tools": span.get_attribute("mlflow.chat.tools"),
        "model": span.model_name,
        "attributes": {name: span.get_attribute(name) for name in ("gen_ai.tool.call.id", "server.address")},
    }
    for span in trace.data.spans
]
json.dump({"tokens": trace.info.token_usage, "input": trace.info.request_preview, "spans": spans}, sys.stdout)
