"use strict";
/* Tables and lists: stages, workers, failures, tools, slowest agents, latest results. */
const tables = (() => {
  const { el, section, table, agentButton, bar, details } = dom;
  const { list, record, text, number } = runModel;
  const { exact, seconds } = format;

  function draw(model) {
    stages(model);
    workers(model);
    failures(model);
    tools(model);
    slowest(model);
    latest(model);
  }

  const known = (value, write) => (number(value) === null ? null : write(value));
  const some = (value) => (value ? exact(value) : value === 0 ? el("span", { class: "none" }, "0") : null);

  function stages({ stages: all }) {
    if (all.length < 2) return section("stages", "Stages");
    const usage = (stage) => record(stage.usage);
    const columns = [
      { name: "Stage", class: "name", cell: (stage) => text(stage.name) || "(unnamed)" },
      {
        name: "Model",
        class: "model",
        cell: (stage) => [text(stage.model), text(stage.backend)].filter(Boolean).join(" on ") || null,
      },
      { name: "Progress", class: "broad", cell: stageProgress },
      { name: "Answered", class: "number", cell: (stage) => known(stage.answered, exact) },
      { name: "Failed", class: "number", cell: (stage) => some(number(stage.failed)) },
      { name: "Total", class: "number", cell: (stage) => known(stage.total, exact) },
      { name: "Turns", class: "number", cell: (stage) => known(stage.turns, exact) },
      { name: "Retries", class: "number", cell: (stage) => some(number(stage.retries)) },
      { name: "Tokens in", class: "number", cell: (stage) => known(usage(stage).input, format.amount) },
      {
        name: "Cached",
        class: "number",
        cell: (stage) => known(usage(stage).cached, (cached) => format.share(cached, usage(stage).input || 1)),
      },
      { name: "Tokens out", class: "number", cell: (stage) => known(usage(stage).output, format.amount) },
      { name: "Cost", class: "number", cell: (stage) => known(stage.cost, format.dollars) },
    ];
    return section("stages", "Stages", null, table("Stages of the flow", columns, all));
  }

  function stageProgress(stage) {
    const states = record(stage.states);
    const inProgress = (states.waiting ?? 0) + (states.generating ?? 0) + (states.tools ?? 0);
    const done = (stage.answered ?? 0) + (stage.failed ?? 0);
    const label = number(stage.total) === null ? `${exact(done)} done` : `${format.share(done, stage.total)} done`;
    return bar(label, stage.total ?? stage.started, [
      ["answered", stage.answered ?? 0, "answered"],
      ["failed", stage.failed ?? 0, "failed"],
      ["in-progress", inProgress, "in progress"],
    ]);
  }

  function workers(model) {
    const rows = list(model.workers).map(record);
    const usage = (worker) => record(worker.usage);
    const most = Math.max(1, ...rows.map((worker) => number(worker.turns) ?? 0));
    const columns = [
      { name: "Worker", class: "name", cell: (worker) => text(worker.name) || "submitting process" },
      { name: "", class: "broad", cell: (worker) => bar("", most, [["plain", worker.turns ?? 0, "turns"]]) },
      {
        name: "Agents",
        class: "number",
        about: "Agents that finished on this worker",
        cell: (worker) => known(worker.agents, exact),
      },
      { name: "Turns", class: "number", cell: (worker) => known(worker.turns, exact) },
      { name: "Tokens in", class: "number", cell: (worker) => known(usage(worker).input, format.amount) },
      {
        name: "Cached",
        class: "number",
        cell: (worker) => known(usage(worker).cached, (cached) => format.share(cached, usage(worker).input || 1)),
      },
      { name: "Tokens out", class: "number", cell: (worker) => known(usage(worker).output, format.amount) },
      { name: "Cost", class: "number", cell: (worker) => known(worker.cost, format.dollars) },
    ];
    section("workers", "Workers", null, rows.length > 0 && table("Workers", columns, rows));
  }

  function failures({ stages: all, totals, results: { hasKeys } }) {
    const groups = all.flatMap((stage, at) =>
      list(stage.failures).map((group) => ({ ...record(group), hasKeys, stage: at, stageName: text(stage.name) })),
    );
    groups.sort((a, b) => (b.count ?? 0) - (a.count ?? 0));
    const note = totals.failed > 0 ? `${exact(totals.failed)} of ${exact(totals.done)} finished agents` : null;
    section(
      "failures",
      "Failures",
      note,
      groups.length > 0 &&
        el(
          "div",
          { class: "groups" },
          groups.map((group) => failure(group, totals.failed)),
        ),
    );
  }

  function failure(group, failed) {
    const kind = text(group.kind) || "unknown";
    const examples = list(group.examples).map(record);
    const head = [
      el("code", null, kind),
      group.stageName && el("span", { class: "note" }, ` in ${group.stageName}`),
      el(
        "span",
        { class: "count" },
        format.plural(group.count, "agent"),
        failed > 0 && el("span", { class: "note" }, ` ${format.share(group.count, failed)}`),
      ),
    ];
    if (!examples.length)
      return el("div", { class: "group", "data-key": `failure ${group.stage} ${kind}` }, el("p", null, head));
    return details(
      `failure ${group.stage} ${kind}`,
      head,
      el(
        "ul",
        { class: "examples" },
        examples.map((example) =>
          el(
            "li",
            null,
            agentButton(group.stage, example.index),
            group.hasKeys && el("span", { class: "key-of-row" }, text(example.key)),
            el("p", { class: "quote" }, dom.breakable(text(example.message) || "(no message)")),
          ),
        ),
      ),
      el(
        "button",
        { type: "button", class: "more", "data-do": "show-failures", "data-stage": group.stage, "data-kind": kind },
        "Show in the table",
      ),
    );
  }

  function tools(model) {
    const rows = list(model.tools).map(record);
    const columns = [
      { name: "Tool", class: "name", cell: (tool) => el("code", null, text(tool.name) || "(unnamed)") },
      { name: "How calls were served", class: "broad", cell: toolBar },
      {
        name: "Requested",
        class: "number",
        about: "Calls requested by agents",
        cell: (tool) => known(tool.requested, exact),
      },
      {
        name: "Executed",
        class: "number",
        about: "Calls that were executed",
        cell: (tool) => known(tool.executed, exact),
      },
      {
        name: "Shared",
        class: "number",
        about: "Calls that got the result of one in progress",
        cell: (tool) => some(number(tool.shared)),
      },
      {
        name: "Cached",
        class: "number",
        about: "Cache hits",
        cell: (tool) => some(number(tool.cached)),
      },
      {
        name: "Failed",
        class: "number",
        about: "Calls whose result is an error, also where it was shared or cached",
        cell: (tool) => some(number(tool.failed)),
      },
      {
        name: "p50",
        class: "number",
        about: "Median execution time",
        cell: (tool) => known(tool.p50, seconds),
      },
      {
        name: "p99",
        class: "number",
        about: "99th percentile of the execution time",
        cell: (tool) => known(tool.p99, seconds),
      },
      {
        name: "Time",
        class: "number",
        about: "Total execution time",
        cell: (tool) => known(tool.seconds, seconds),
      },
      {
        name: "Saved",
        class: "number",
        about: "Execution time that the shared and cached calls would have taken",
        cell: (tool) => known(tool.seconds_saved, seconds),
      },
    ];
    const legend = el(
      "p",
      { class: "legend" },
      [
        ["executed", "executed"],
        ["shared", "shared"],
        ["cached", "cached"],
      ].map(([tone, name]) => [el("span", { class: `key ${tone}` }, name), " "]),
    );
    section("tools", "Tools", null, rows.length > 0 && [table("Tools", columns, rows), legend]);
  }

  function toolBar(tool) {
    const pieces = [
      ["executed", tool.executed ?? 0, "executed"],
      ["shared", tool.shared ?? 0, "shared"],
      ["cached", tool.cached ?? 0, "cached"],
    ];
    return bar(pieces.map(([, value, name]) => `${exact(value)} ${name}`).join(", "), tool.requested, pieces);
  }

  function slowest({ stages: all, results: { hasKeys } }) {
    const rows = all.flatMap((stage, at) =>
      list(stage.slowest).map((agent) => ({ ...record(agent), stage: at, stageName: text(stage.name) })),
    );
    rows.sort((a, b) => (b.seconds ?? 0) - (a.seconds ?? 0));
    const most = number(rows[0]?.seconds) || 1;
    const columns = [
      { name: "Agent", class: "name", cell: (agent) => agentButton(agent.stage, agent.index) },
      { name: "Key", class: "key-of-row", cell: (agent) => (hasKeys && text(agent.key)) || null },
      { name: "Stage", cell: (agent) => agent.stageName || null },
      { name: "Took", class: "number", cell: (agent) => known(agent.seconds, seconds) },
      { name: "", class: "broad", cell: (agent) => bar("", most, [["plain", agent.seconds ?? 0, "seconds"]]) },
      { name: "Turns", class: "number", cell: (agent) => known(agent.turns, exact) },
      { name: "Cost", class: "number", cell: (agent) => known(agent.cost, format.dollars) },
    ];
    section(
      "slowest",
      "Slowest agents",
      null,
      rows.length > 0 && table("Slowest agents", columns, rows.slice(0, 10), "narrow"),
    );
  }

  function latest({ stages: all, results: { hasKeys } }) {
    const rows = all.flatMap((stage, at) =>
      list(stage.latest).map((result) => ({ ...record(result), hasKeys, stage: at, stageName: text(stage.name) })),
    );
    rows.sort((a, b) => (b.at ?? 0) - (a.at ?? 0));
    section(
      "latest",
      "Latest results",
      null,
      rows.length > 0 && el("ol", { class: "results" }, rows.slice(0, 8).map(result)),
    );
  }

  function result(row) {
    const outcome = row.ok === true ? ["answered", "answered"] : row.ok === false ? ["failed", "failed"] : null;
    const facts = [
      row.stageName,
      known(row.at, (at) => `at ${seconds(at)}`),
      known(row.seconds, (took) => `took ${seconds(took)}`),
    ].filter(Boolean);
    return el(
      "li",
      null,
      el(
        "p",
        { class: "facts" },
        agentButton(row.stage, row.index),
        row.hasKeys && el("span", { class: "key-of-row" }, text(row.key)),
        outcome && el("span", { class: `key ${outcome[0]}` }, outcome[1]),
        el("span", { class: "note" }, facts.join(" · ")),
      ),
      text(row.text) && el("p", { class: "quote" }, format.spaced(text(row.text))),
    );
  }

  return { draw };
})();
