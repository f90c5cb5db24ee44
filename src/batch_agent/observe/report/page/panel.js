"use strict";
/* Side panel with the details of one agent. A live page also loads its trace from the server. */
const panel = (() => {
  const { el, morph } = dom;
  const { list, record, text } = runModel;
  const KINDS = [
    ["waiting", "waited"],
    ["generating", "generated"],
    ["tools", "ran tools"],
  ];
  const OUTCOMES = [
    ["failed", "Failed"],
    ["answered", "Answered"],
    ["in-progress", "In progress"],
  ];
  const MAX_STEPS = 300;

  let model = null;
  let shown = null;
  let trace = null;
  let opener = null;

  const host = () => document.getElementById("panel");

  function set(next) {
    const was = shown;
    const before =
      was && model ? model.agents.first[was.agent + 1] - model.agents.first[was.agent] + model.agents.ok[was.agent] : 0;
    model = next;
    if (!was) return;
    const agent = timeline.agentOf(was.stage, was.index);
    shown = agent === null ? null : { ...was, agent };
    if (!shown) return close();
    draw();
    if (before !== model.agents.first[agent + 1] - model.agents.first[agent] + model.agents.ok[agent]) loadTrace();
  }

  function open(agent) {
    if (host().hidden) opener = document.activeElement;
    shown = { agent, stage: model.agents.stage[agent], index: model.agents.index[agent] };
    trace = live.isLive ? "Loading the trace …" : null;
    host().hidden = false;
    document.body.classList.add("with-panel");
    draw();
    host().scrollTop = 0;
    host().focus({ preventScroll: true });
    loadTrace();
  }

  function close() {
    if (host().hidden) return;
    host().hidden = true;
    shown = null;
    document.body.classList.remove("with-panel");
    timeline.deselect();
    opener?.focus?.({ preventScroll: true });
  }

  async function loadTrace() {
    if (!live.isLive || !shown) return;
    const wanted = shown;
    const loaded = await live.trace(wanted.index, text(model.stages[wanted.stage]?.name));
    if (shown?.index !== wanted.index || shown?.stage !== wanted.stage) return;
    trace = loaded;
    draw();
  }

  function draw() {
    const { agent, stage, index } = shown;
    const { agents, stages } = model;
    const [tone, ended] = OUTCOMES[agents.ok[agent]] ?? OUTCOMES[2];
    const name = stages.length > 1 ? text(stages[stage]?.name) : "";
    const parts = tooltips.durations(agents, agent);
    morph(
      host(),
      el(
        "div",
        { class: "panel-head" },
        el("h2", { id: "panel-title" }, `Agent ${format.exact(index)}`),
        el("span", { class: `badge ${tone}` }, ended),
        el("button", { type: "button", "data-do": "close-panel", "aria-label": "Close", title: "Close (Esc)" }, "×"),
      ),
      name && el("p", { class: "note" }, `in ${name}`),
      dom.bar(
        parts.map(([, what, value]) => `${what} ${format.seconds(value)}`).join(", "),
        parts[3][2],
        parts.slice(0, 3).map(([color, what, value]) => [color, value, `${what}: ${format.seconds(value)}`]),
      ),
      el(
        "dl",
        { class: "pairs" },
        pair("Started at", format.seconds(agents.start[agent] / 100)),
        parts.map(([, what, value]) => pair(what.charAt(0).toUpperCase() + what.slice(1), format.seconds(value))),
        pair("Requests", format.exact(agents.turns[agent])),
      ),
      excerpts(stage, index),
      trace && el("h3", null, "Trace"),
      trace && el("pre", { class: "trace" }, trace),
      steps(agent),
    );
  }

  function pair(name, value) {
    return el("div", null, el("dt", null, name), el("dd", null, value));
  }

  /** Error or result of the agent, where the report has it: as an example of a failure or one of the latest results. */
  function excerpts(stage, index) {
    const of = record(model.stages[stage]);
    const examples = list(of.failures)
      .map(record)
      .flatMap((group) => list(group.examples).map((example) => ({ ...record(example), kind: text(group.kind) })));
    const failed = examples.find((example) => example.index === index);
    const result = list(of.latest)
      .map(record)
      .find((one) => one.index === index);
    return [
      failed && [
        el("h3", null, "Error"),
        el("p", null, el("code", null, failed.kind)),
        el("p", { class: "quote" }, text(failed.message)),
      ],
      result &&
        !failed &&
        text(result.text) && [el("h3", null, "Result"), el("p", { class: "quote" }, text(result.text))],
    ];
  }

  function steps(agent) {
    const { agents } = model;
    const [first, last] = [agents.first[agent], agents.first[agent + 1]];
    const rows = [];
    let clock = agents.start[agent];
    for (let at = first; at < last && rows.length < MAX_STEPS; at++) {
      if (agents.from[at] > clock) rows.push([0, clock, agents.from[at]]);
      rows.push([agents.kind[at], agents.from[at], agents.to[at]]);
      clock = agents.to[at];
    }
    if (!rows.length) return null;
    const items = rows.map(([kind, from, to]) => {
      const [tone, did] = KINDS[kind] ?? KINDS[0];
      return el(
        "li",
        null,
        el("span", { class: "at" }, format.seconds(from / 100)),
        el("span", { class: `key ${tone}` }, did),
        el("b", null, format.seconds((to - from) / 100)),
      );
    });
    return [el("h3", null, "Steps"), el("ol", { class: "steps" }, items)];
  }

  return {
    set,
    open,
    close,
    get isOpen() {
      return shown !== null;
    },
  };
})();
