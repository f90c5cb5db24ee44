"use strict";
/* The head of the page: what ran, how far it is, what it came to, and what was saved. */
const summary = (() => {
  const { el, morph, bar } = dom;
  const { list, record, text, number } = reading;

  const BADGES = { waiting: "Waiting", running: "Running", finished: "Finished", "ended early": "Ended early" };

  const NOTHING = {
    waiting: "The run has not written anything yet. This page shows it as soon as it does.",
    else: "Nothing is written of this run.",
  };

  function draw(model) {
    document.title = `${text(model.title) || "Run"} · BatchAgent`;
    morph(document.getElementById("head"), heading(model), origin(model), progress(model));
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

  function origin(model) {
    const runs = list(model.processes).length;
    const facts = [
      models(model.stages),
      number(model.began) !== null && ["began ", el("time", { datetime: isoOf(model.began) }, words.when(model.began))],
      model.seconds > 0 && `${model.isRunning ? "running for" : "took"} ${words.seconds(model.seconds)}`,
      runs > 1 && `${runs} processes, ${words.plural(runs - 1, "resume")}`,
    ];
    return el(
      "ul",
      { class: "origin" },
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
    const underWay = totals.waiting + totals.generating + totals.tools;
    const ended = [
      ["answered", totals.answered ?? 0, "answered"],
      ["failed", totals.failed ?? 0, "failed"],
    ];
    const said =
      ended.map(([, value, name]) => `${words.exact(value)} ${name}`).join(", ") +
      (totals.total === null ? "" : ` of ${words.exact(totals.total)}`);
    const total = totals.total ?? totals.started ?? totals.done;
    if (!total) return null;
    const legend = [
      ...ended,
      ["generating", totals.generating, "generating"],
      ["tools", totals.tools, "in tools"],
      ["waiting", totals.waiting, "waiting"],
      ["rest", (total ?? 0) - (totals.done ?? 0) - underWay, "not begun"],
    ].filter(([, value]) => value > 0);
    return el(
      "div",
      { class: "progress" },
      bar(said, total, isRunning ? [...ended, ["under-way", underWay, "under way"]] : ended),
      el(
        "p",
        { class: "legend" },
        legend.map(([tone, value, name]) => [el("span", { class: `key ${tone}` }, words.exact(value), " ", name), " "]),
      ),
    );
  }

  function tiles(model) {
    const { totals } = model;
    return [
      answers(totals),
      throughput(model),
      model.isRunning && tile("Time left", words.seconds(number(record(model.throughput).eta)), "at the present rate"),
      totals.input !== null &&
        tile("Tokens in", words.amount(totals.input), cachedNote(totals), words.exact(totals.input)),
      totals.output !== null &&
        tile("Tokens out", words.amount(totals.output), outputNote(model), words.exact(totals.output)),
      cost(totals),
      calls(model),
      totals.turns !== null && tile("Turns", words.amount(totals.turns), turnsNote(totals)),
    ];
  }

  function tile(name, value, note, title) {
    const isKnown = value !== words.UNKNOWN;
    return el(
      "div",
      { class: "tile", "data-key": name },
      el("dt", null, name),
      el("dd", { class: isKnown ? "figure" : "figure unknown", title }, value),
      note && el("dd", { class: "note" }, note),
    );
  }

  function answers(totals) {
    const notes = [
      totals.total !== null && `of ${words.exact(totals.total)}`,
      totals.failed > 0 ? `${words.exact(totals.failed)} failed` : totals.done > 0 && "none failed",
      totals.resumed > 0 && `${words.exact(totals.resumed)} from the checkpoint`,
    ].filter(Boolean);
    return tile("Answered", words.exact(totals.answered), notes.join(", "));
  }

  function throughput(model) {
    const [value, unit] = words.rate(number(record(model.throughput).per_second));
    const note = model.isRunning ? "agents, lately" : "agents, over the run";
    return value !== words.UNKNOWN && tile("Throughput", [value, el("small", null, ` ${unit}`)], note);
  }

  function cachedNote({ input, cached }) {
    if (cached === null) return "how many were cached is not known";
    return input > 0 ? `${words.share(cached, input)} from the prefix cache` : null;
  }

  function outputNote({ totals, seconds }) {
    return seconds > 0 && totals.output > 0 ? words.rate(totals.output / seconds).join(" ") : null;
  }

  function cost({ usd, isPriced, answered }) {
    if (usd === null && !answered) return null;
    if (usd === null) return tile("Cost", words.UNKNOWN, "no price for this model");
    const each = answered > 0 && usd > 0 ? `${words.dollars(usd / answered)} per answer` : null;
    return tile("Cost", words.dollars(usd), isPriced ? each : "of the stages with a known price");
  }

  function calls(model) {
    const tools = list(model.tools).map(record);
    const requested = reading.sum(tools.map((tool) => tool.requested));
    if (!requested) return null;
    const executed = reading.sum(tools.map((tool) => tool.executed));
    const failed = reading.sum(tools.map((tool) => tool.failed));
    const notes = [];
    if (executed !== null) notes.push(`${words.exact(executed)} executed`);
    if (failed) notes.push(`${words.exact(failed)} failed`);
    return tile(
      "Tool calls",
      words.amount(requested),
      notes.join(", ") || null,
      words.exact(requested),
    );
  }

  function turnsNote({ retries, compactions }) {
    const notes = [];
    if (retries) notes.push(`${words.plural(retries, "request")} sent again`);
    if (compactions) notes.push(words.plural(compactions, "compaction"));
    return notes.join(", ");
  }

  function savings(model) {
    const rows = list(model.savings)
      .map(record)
      .filter((row) => text(row.name));
    const note = "Beside the same work without sharing, caching and resuming";
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
      el("p", { class: "figure" }, isKnown ? figure(saved, unit) : el("span", { class: "unknown" }, words.UNKNOWN)),
      part && bar(`${words.share(saved, without)} saved`, without, [["saved", saved, "saved"]]),
      el(
        "p",
        { class: "note" },
        part
          ? `${words.share(saved, without)} of ${measured(without, unit)} without it`
          : isKnown
            ? ""
            : text(row.basis) || text(row.formula),
      ),
      isKnown && dom.present(how).length > 0 && dom.details(`saving ${text(row.name)}`, "How is this counted?", how),
    );
  }

  function figure(value, unit) {
    const isCount = measured(value, unit) === `${words.amount(value)} ${unit}`;
    return isCount ? [words.amount(value), el("small", null, ` ${unit}`)] : measured(value, unit);
  }

  function measured(value, unit) {
    if (unit === "seconds" || unit === "s") return words.seconds(value);
    if (unit === "usd" || unit === "dollars") return words.dollars(value);
    return unit ? `${words.amount(value)} ${unit}` : words.amount(value);
  }

  function capital(name) {
    return name.charAt(0).toUpperCase() + name.slice(1);
  }

  return { draw };
})();
