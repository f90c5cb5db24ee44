"""python read_phoenix.py URL, with Phoenix's own Python: the spans of a project, as its client returns them."""

import json
import sys

from phoenix.client import Client

spans = Client(base_url=sys.argv[1]).spans.get_spans(project_identifier="default", limit=1_000)
json.dump([{"name": each["name"], "kind": each["span_kind"], **each["attributes"]} for each in spans], sys.stdout)
