"use strict";
/* Scheduling: the shared prompt prefix, limits and their changes, pauses and resumes. */
const scheduling = (() => {
  const { el, section, table, details } = dom;
  const { list, record, text, number } = runModel;
  const { exact, seconds } = format;

  const FIGURES = [
    ["kv_tokens", "KV cache size", (value) => `${exact(value)} tokens`],
    ["kv_limit", "KV cache limit", (value) => `${exact(value)} tokens`],
    ["max_residents", "Peak resident agents", exact],
    ["evictions", "Evictions during long tool calls", exact],
    ["overcommitted", "Agents admitted over capacity", exact],
    ["cache_misses", "Turns whose context was evicted", exact],
  ];

  function draw(model) {
    prompts(model);
    const how = record(model.scheduling);
    const known = FIGURES.filter(([name]) => number(how[name]) !== null);
    section("scheduling", "Scheduling", null, [
      known.length > 0 &&
        el(
          "dl",
          { class: "pairs" },
          known.map(([name, title, write]) => el("div", null, el("dt", null, title), el("dd", null, write(how[name])))),
        ),
      text(how.lanes) && el("p", { class: "note" }, `Lanes: ${text(how.lanes)}`),
      text(how.pace) && el("p", { class: "note" }, text(how.pace)),
      text(how.shared_results) && el("p", { class: "note" }, text(how.shared_results)),
      backends(model),
      limits(model),
      interruptions(model),
      changes(model),
      endpoints(model),
    ]);
  }

  function prompts({ stages }) {
    const cards = stages
      .map((stage) => [stage, record(stage.prefix)])
      .filter(([, prefix]) => Object.values(prefix).some((value) => value !== null));
    section(
      "prompts",
      "Shared prompt prefix",
      "A server with a prefix cache computes it once",
      cards.length > 0 &&
        el(
          "div",
          { class: "cards large" },
          cards.map(([stage, prefix]) => prompt(text(stage.name), prefix)),
        ),
    );
  }

  function prompt(name, prefix) {
    const [shared, all] = [number(prefix.shared_tokens), number(prefix.prompt_tokens)];
    const findings = list(prefix.findings).map(text).filter(Boolean);
    return el(
      "article",
      { class: "card", "data-key": `prompt ${name}` },
      name && el("h3", null, name),
      shared !== null &&
        el(
          "p",
          null,
          `All prompts share their first ${exact(shared)} tokens`,
          all !== null && `; the average prompt has ${exact(all)}`,
          ".",
        ),
      el(
        "div",
        { class: "gauges" },
        gauge("Expected", number(prefix.predicted)),
        gauge("Measured", number(prefix.measured)),
      ),
      text(prefix.diverges_at) && [
        el("p", { class: "note" }, "Prompts diverge at:"),
        el("p", { class: "quote" }, text(prefix.diverges_at)),
      ],
      findings.length > 0 &&
        el(
          "ul",
          { class: "findings" },
          findings.map((finding) => el("li", null, finding)),
        ),
    );
  }

  function gauge(name, share) {
    const isKnown = share !== null;
    return el(
      "div",
      { class: "gauge" },
      el("span", null, `${name} cache hit rate`),
      el("strong", { class: isKnown ? null : "unknown" }, isKnown ? format.share(share, 1) : format.UNKNOWN),
      isKnown && dom.bar(`${name}: ${format.share(share, 1)}`, 1, [["saved", share, name]]),
    );
  }

  function backends({ stages }) {
    const detected = new Set(stages.flatMap((stage) => list(stage.seen).map(text).filter(Boolean)));
    return detected.size > 0 && el("p", { class: "note" }, `Detected server: ${[...detected].join(", ")}`);
  }

  function limits(model) {
    const rows = list(model.limits).map(record).reverse();
    const columns = [
      { name: "At", class: "number", cell: (row) => (number(row.at) === null ? null : seconds(row.at)) },
      { name: "Slots", class: "number", cell: (row) => (number(row.inflight) === null ? null : exact(row.inflight)) },
      { name: "Reason", class: "broad", cell: (row) => text(row.reason) || null },
    ];
    return (
      rows.length > 0 &&
      details(
        "limits",
        `Changes of the concurrency limit (${exact(rows.length)})`,
        table("Changes of the concurrency limit", columns, rows, "narrow"),
      )
    );
  }

  function interruptions(model) {
    const pauses = list(model.pauses)
      .map(record)
      .map((pause) => [pause.at, `paused for ${seconds(pause.seconds)}`, text(pause.reason)]);
    const starts = list(model.processes)
      .slice(1)
      .map((at, number) => [at, `resumed by process ${number + 2}`, ""]);
    const rows = [...pauses, ...starts].sort((a, b) => a[0] - b[0]);
    const columns = [
      { name: "At", class: "number", cell: ([at]) => (number(at) === null ? null : seconds(at)) },
      { name: "Event", class: "name", cell: ([, what]) => what },
      { name: "Reason", class: "broad", cell: ([, , why]) => why },
    ];
    return (
      rows.length > 0 &&
      details(
        "interruptions",
        `Pauses and resumes (${exact(rows.length)})`,
        table("Pauses and resumes", columns, rows, "narrow"),
      )
    );
  }

  function changes(model) {
    return changeTable("changes", "Changes by the user", model.steered);
  }

  function endpoints(model) {
    return changeTable("endpoints", "Endpoints that joined and left", model.endpoints);
  }

  function changeTable(id, title, found) {
    const rows = list(found).map(record);
    const columns = [
      { name: "At", class: "number", cell: (row) => (number(row.at) === null ? null : seconds(row.at)) },
      { name: "Change", class: "broad", cell: (row) => text(row.change) || null },
    ];
    return (
      rows.length > 0 &&
      details(id, `${title} (${exact(rows.length)})`, table(title, columns, rows, "narrow"))
    );
  }

  return { draw };
})();
