"use strict";
/* Why the run went as it did: what prompts shared, which limits held, what interrupted it. */
const scheduling = (() => {
  const { el, section, table, details } = dom;
  const { list, record, text, number } = reading;
  const { exact, seconds } = words;

  const FIGURES = [
    ["kv_tokens", "KV cache of the server", (value) => `${exact(value)} tokens`],
    ["kv_limit", "Kept to", (value) => `${exact(value)} tokens`],
    ["most_residents", "Most agents with a place at once", exact],
    ["gave_up", "Places given up during long tools", exact],
    ["guests", "Agents let in beyond the capacity", exact],
    ["lost", "Turns that found their context gone", exact],
  ];

  function draw(model) {
    prompts(model);
    const how = record(model.scheduling);
    const known = FIGURES.filter(([name]) => number(how[name]) !== null);
    section("scheduling", "How it was scheduled", null, [
      known.length > 0 &&
        el(
          "dl",
          { class: "pairs" },
          known.map(([name, title, write]) => el("div", null, el("dt", null, title), el("dd", null, write(how[name])))),
        ),
      backends(model),
      limits(model),
      interruptions(model),
    ]);
  }

  function prompts({ stages }) {
    const cards = stages
      .map((stage) => [stage, record(stage.prefix)])
      .filter(([, prefix]) => Object.values(prefix).some((value) => value !== null));
    section(
      "prompts",
      "What prompts share",
      "What all prompts begin with is computed once, if the server keeps it",
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
          `${exact(shared)} tokens of a prompt are the same for all`,
          all !== null && `, of ${exact(all)} in an average one`,
          ".",
        ),
      el(
        "div",
        { class: "gauges" },
        gauge("expected", number(prefix.predicted)),
        gauge("measured", number(prefix.measured)),
      ),
      text(prefix.diverges_at) && [
        el("p", { class: "note" }, "Prompts differ from here on:"),
        el("p", { class: "said" }, text(prefix.diverges_at)),
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
      el("span", null, `From the cache, ${name}`),
      el("strong", { class: isKnown ? null : "unknown" }, isKnown ? words.share(share, 1) : words.UNKNOWN),
      isKnown && dom.bar(`${name}: ${words.share(share, 1)}`, 1, [["saved", share, name]]),
    );
  }

  function backends({ stages }) {
    const seen = new Set(stages.flatMap((stage) => list(stage.seen).map(text).filter(Boolean)));
    return seen.size > 0 && el("p", { class: "note" }, `Seen of the server: ${[...seen].join(", ")}`);
  }

  function limits(model) {
    const rows = list(model.limits).map(record).reverse();
    const columns = [
      { name: "At", class: "number", cell: (row) => (number(row.at) === null ? null : seconds(row.at)) },
      { name: "Slots", class: "number", cell: (row) => (number(row.inflight) === null ? null : exact(row.inflight)) },
      { name: "Why", class: "broad", cell: (row) => text(row.reason) || null },
    ];
    return (
      rows.length > 0 &&
      details(
        "limits",
        `How the limit of requests in flight changed (${exact(rows.length)})`,
        table("Changes of the limit", columns, rows, "narrow"),
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
      { name: "What", class: "name", cell: ([, what]) => what },
      { name: "Why", class: "broad", cell: ([, , why]) => why },
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

  return { draw };
})();
