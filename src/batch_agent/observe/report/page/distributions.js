"use strict";
/* Latency histograms: time to first token, turns, agents, queueing, tools. */
const distributions = (() => {
  const { el, section } = dom;
  const { list, record, number } = runModel;
  const { exact, seconds } = format;

  const KINDS = [
    ["ttft", "Time to first token", "turns"],
    ["turn", "Turn", "turns"],
    ["agent", "Agent, start to end", "agents"],
    ["queued", "Waiting for a slot", "turns"],
    ["tool", "Tool execution", "executions"],
  ];

  function draw(model) {
    const all = record(model.distributions);
    const shown = KINDS.filter(([name]) => number(record(all[name]).count) > 0);
    const cards = shown.map(([name, title, unit]) => distribution(title, unit, record(all[name])));
    section("distributions", "Latency", null, cards.length > 0 && el("div", { class: "cards" }, cards));
  }

  function distribution(title, unit, data) {
    const [edges, counts] = [list(data.edges), list(data.counts)];
    const marks = [
      ["p50", data.p50],
      ["p90", data.p90],
      ["p99", data.p99],
    ].filter(([, value]) => number(value) !== null);
    const most = number(data.max) ?? edges[edges.length - 1];
    const highest = Math.max(...counts, 1);
    const bars = counts.map((count, at) =>
      el("i", {
        title: `${seconds(edges[at])} to ${seconds(edges[at + 1])}: ${exact(count)}`,
        style: { height: `${count ? Math.max(2, (100 * count) / highest) : 0}%` },
      }),
    );
    const lines = marks.map(([name, value]) =>
      el("b", {
        class: name,
        title: `${name}: ${seconds(value)}`,
        style: { left: `${100 * positionOf(edges, value)}%` },
      }),
    );
    const parts = [...marks, ["max", most]].map(([name, value]) => `${name} ${seconds(value)}`);
    const label = `${title}: ${parts.join(", ")}`;
    return el(
      "article",
      { class: "card", "data-key": title },
      el("h3", null, title),
      el("p", { class: "note" }, `${exact(data.count)} ${unit}`),
      counts.length > 0 &&
        edges.length > counts.length && [
          el("div", { class: "bars", role: "img", "aria-label": label }, bars, lines),
          el(
            "p",
            { class: "ends note" },
            el("span", null, `min ${seconds(edges[0])}`),
            el("span", null, `max ${seconds(most)}`),
          ),
        ],
      el(
        "dl",
        { class: "figures" },
        marks.map(([name, value]) => el("div", null, el("dt", { class: name }, name), el("dd", null, seconds(value)))),
      ),
    );
  }

  /** Position of a value between the first edge and the last (0 to 1), with all bins drawn equally wide. */
  function positionOf(edges, value) {
    const bins = edges.length - 1;
    for (let at = 0; at < bins; at++) {
      if (value <= edges[at + 1])
        return Math.max(0, (at + Math.max(0, value - edges[at]) / (edges[at + 1] - edges[at] || 1)) / bins);
    }
    return 1;
  }

  return { draw };
})();
