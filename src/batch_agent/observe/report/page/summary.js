"use strict";
/* Head of the page: title, progress, key figures and savings. */
const summary = (() => {
  const { el, morph, bar } = dom;
  const { list, record, text, number } = runModel;

  const BADGES = { waiting: "Waiting", running: "Running", finished: "Finished", "ended early": "Ended early" };

  const NOTHING = {
    waiting: "The run has not recorded any events yet. This page updates when it does.",
    else: "This run has no recorded events.",
  };

  function draw(model) {
    document.title = `${text(model.title) || "Run"} · BatchAgent`;
    morph(document.getElementById("head"), heading(model), details(model), progress(model));
    const host = document.getElementById("summary");
    host.hidden = false;
    morph(
      host,
      model.stages.length > 0
        ? el("dl", { class: "tiles" }, tiles(model))
        : el("p", { class: "card" }, NOTHING[model.state] ?? NOTHING.else),
    );
    savings(model);
  }

  function heading(model) {
    const state = text(model.state);
    return el(
      "div",
      { class: "heading" },
      el("h1", null, text(model.title) || "Run"),
      BADGES[state] && el("span", { class: `badge ${state.replace(" ", "-")}`, id: "state" }, BADGES[state]),
    );
  }

  function details(model) {
    const runs = list(model.processes).length;
    const facts = [
      models(model.stages),
      number(model.began) !== null && [
        "started ",
        el("time", { datetime: isoOf(model.began) }, format.when(model.began)),
      ],
      model.seconds > 0 && `${model.isRunning ? "running for" : "took"} ${format.seconds(model.seconds)}`,
      runs > 1 && `${runs} processes, ${format.plural(runs - 1, "resume")}`,
    ];
    return el(
      "ul",
      { class: "run-details" },
      facts.filter(Boolean).map((fact) => el("li", null, fact)),
    );
  }

  function models(stages) {
    const used = new Set(
      stages.map((stage) => [text(stage.model), text(stage.backend)].filter(Boolean).join(" on ")).filter(Boolean),
    );
    if (!used.size) return null;
    const [first, ...others] = used;
    return others.length > 2 ? `${first} and ${others.length} more` : [...used].join(", ");
  }

  function isoOf(epoch) {
    const date = new Date(epoch * 1000);
    return Number.isNaN(date.getTime()) ? null : date.toISOString();
  }

  function progress({ totals, isRunning }) {
    const inProgress = totals.waiting + totals.generating + totals.tools;
    const ended = [
      ["answered", totals.answered ?? 0, "answered"],
      ["failed", totals.failed ?? 0, "failed"],
    ];
    const label =
      ended.map(([, value, name]) => `${format.exact(value)} ${name}`).join(", ") +
      (totals.total === null ? "" : ` of ${format.exact(totals.total)}`);
    const total = totals.total ?? totals.started ?? totals.done;
    if (!total) return null;
    const legend = [
      ...ended,
      ["generating", totals.generating, "generating"],
      ["tools", totals.tools, "in tools"],
      ["waiting", totals.waiting, "waiting"],
      ["rest", (total ?? 0) - (totals.done ?? 0) - inProgress, "not started"],
    ].filter(([, value]) => value > 0);
    return el(
      "div",
      { class: "progress" },
      bar(label, total, isRunning ? [...ended, ["in-progress", inProgress, "in progress"]] : ended),
      el(
        "p",
        { class: "legend" },
        legend.map(([tone, value, name]) => [
          el("span", { class: `key ${tone}` }, format.exact(value), " ", name),
          " ",
        ]),
      ),
    );
  }

  function tiles(model) {
    const { totals } = model;
    return [
      answers(model),
      throughput(model),
      model.isRunning && tile("Time left", format.seconds(number(record(model.throughput).eta)), "at the current rate"),
      totals.input !== null &&
        tile("Tokens in", format.amount(totals.input), inputNote(model), format.exact(totals.input)),
      totals.output !== null &&
        tile("Tokens out", format.amount(totals.output), outputNote(model), format.exact(totals.output)),
      costTile(totals),
      calls(model),
      totals.turns !== null && tile("Turns", format.amount(totals.turns), turnsNote(totals)),
    ];
  }

  function tile(name, value, note, title) {
    const isKnown = value !== format.UNKNOWN;
    return el(
      "div",
      { class: "tile", "data-key": name },
      el("dt", null, name),
      el("dd", { class: isKnown ? "figure" : "figure unknown", title }, value),
      note && el("dd", { class: "note" }, note),
    );
  }

  function answers(model) {
    const { totals } = model;
    let truncated = 0;
    for (let agent = 0; agent < model.agents.count; agent++) truncated += runModel.isTruncated(model, agent);
    const notes = [
      totals.total !== null && `of ${format.exact(totals.total)}`,
      totals.failed > 0 ? `${format.exact(totals.failed)} failed` : totals.done > 0 && "no failures",
      truncated > 0 && `${format.exact(truncated)} cut at max_tokens`,
      totals.resumed > 0 && `${format.exact(totals.resumed)} from the checkpoint`,
    ].filter(Boolean);
    return tile("Answered", format.exact(totals.answered), notes.join(", "));
  }

  function throughput(model) {
    const [value, unit] = format.rate(number(record(model.throughput).per_second));
    const note = model.isRunning ? "agents, recent" : "agents, average";
    return value !== format.UNKNOWN && tile("Throughput", [value, el("small", null, ` ${unit}`)], note);
  }

  function inputNote({ totals: { input, cached }, outside_agents: outside }) {
    const notes = [
      cached === null ? "cached tokens unknown" : input > 0 && `${format.share(cached, input)} from the prefix cache`,
      outsideNote(record(outside).input),
    ];
    return notes.filter(Boolean).join(", ");
  }

  function outputNote({ totals, seconds, outside_agents: outside }) {
    const notes = [
      seconds > 0 && totals.output > 0 && format.rate(totals.output / seconds).join(" "),
      outsideNote(record(outside).output),
    ];
    return notes.filter(Boolean).join(", ");
  }

  /** Tokens that no row of the results has: of summaries, and of the test whether the server accepts tools. */
  const outsideNote = (tokens) => number(tokens) > 0 && `incl. ${format.exact(tokens)} for checks and summaries`;

  function costTile({ cost, lanes, isPriced, answered }) {
    if (cost === null && !answered) return null;
    if (cost === null) return tile("Cost", format.UNKNOWN, "no price for this model");
    const each = answered > 0 && cost > 0 ? `${format.dollars(cost / answered)} per answer` : null;
    const notes = [
      isPriced ? each : "of the stages with a known price",
      ...lanes.map(([lane, spent]) => `${format.dollars(spent)} in ${lane}`),
    ];
    return tile("Cost", format.dollars(cost), notes.filter(Boolean).join(", "));
  }

  function calls(model) {
    const tools = list(model.tools).map(record);
    const requested = runModel.sum(tools.map((tool) => tool.requested));
    if (!requested) return null;
    const executed = runModel.sum(tools.map((tool) => tool.executed));
    const failed = runModel.sum(tools.map((tool) => tool.failed));
    const notes = [];
    if (executed !== null) notes.push(`${format.exact(executed)} executed`);
    if (failed) notes.push(`${format.exact(failed)} got an error`);
    return tile("Tool calls", format.amount(requested), notes.join(", ") || null, format.exact(requested));
  }

  function turnsNote({ retries, compactions }) {
    const notes = [];
    if (retries) notes.push(format.plural(retries, "retry", "retries"));
    if (compactions) notes.push(format.plural(compactions, "compaction"));
    return notes.join(", ");
  }

  function savings(model) {
    const rows = list(model.savings)
      .map(record)
      .filter((row) => text(row.name));
    const note = "Compared with the same work without sharing, caching and resuming";
    dom.section("savings", "Saved", note, rows.length > 0 && el("div", { class: "cards" }, rows.map(saving)));
  }

  function saving(row) {
    const [saved, without] = [number(row.saved), number(row.without)];
    const unit = text(row.unit);
    const isKnown = saved !== null;
    const part = isKnown && without !== null && without > 0;
    const how = [
      text(row.formula) && el("p", null, text(row.formula)),
      text(row.basis) && el("p", { class: "note" }, `Basis: ${text(row.basis)}`),
    ];
    return el(
      "article",
      { class: "card saving", "data-key": text(row.name) },
      el("h3", null, capital(text(row.name))),
      el("p", { class: "figure" }, isKnown ? figure(saved, unit) : el("span", { class: "unknown" }, format.UNKNOWN)),
      part && bar(`${format.share(saved, without)} saved`, without, [["saved", saved, "saved"]]),
      el(
        "p",
        { class: "note" },
        part
          ? `${format.share(saved, without)} less than the ${measured(without, unit)} without it`
          : isKnown
            ? ""
            : text(row.basis) || text(row.formula),
      ),
      isKnown && dom.present(how).length > 0 && dom.details(`saving ${text(row.name)}`, "How is this counted?", how),
    );
  }

  function figure(value, unit) {
    const isCount = measured(value, unit) === `${format.amount(value)} ${unit}`;
    return isCount ? [format.amount(value), el("small", null, ` ${unit}`)] : measured(value, unit);
  }

  function measured(value, unit) {
    if (unit === "seconds" || unit === "s") return format.seconds(value);
    if (unit === "dollars") return format.dollars(value);
    return unit ? `${format.amount(value)} ${unit}` : format.amount(value);
  }

  function capital(name) {
    return name.charAt(0).toUpperCase() + name.slice(1);
  }

  return { draw };
})();
