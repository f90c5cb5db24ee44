"use strict";
/* What is known of one agent, beside the page. A served page asks for its story; a report shows what it has. */
const panel = (() => {
  const { el, morph } = dom;
  const { list, record, text } = reading;
  const KINDS = [
    ["waiting", "waited"],
    ["generating", "generated"],
    ["tools", "ran tools"],
  ];
  const ENDS = [
    ["failed", "Failed"],
    ["answered", "Answered"],
    ["under-way", "Under way"],
  ];
  const MOST_STEPS = 300;

  let model = null;
  let shown = null;
  let story = null;
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
    if (before !== model.agents.first[agent + 1] - model.agents.first[agent] + model.agents.ok[agent]) ask();
  }

  function open(agent) {
    if (host().hidden) opener = document.activeElement;
    shown = { agent, stage: model.agents.stage[agent], index: model.agents.index[agent] };
    story = live.isLive ? { said: "Reading its story …" } : null;
    host().hidden = false;
    document.body.classList.add("with-panel");
    draw();
    host().scrollTop = 0;
    host().focus({ preventScroll: true });
    ask();
  }

  function close() {
    if (host().hidden) return;
    host().hidden = true;
    shown = null;
    document.body.classList.remove("with-panel");
    timeline.forget();
    opener?.focus?.({ preventScroll: true });
  }

  async function ask() {
    if (!live.isLive || !shown) return;
    const wanted = shown;
    const answer = await live.story(wanted.index, text(model.stages[wanted.stage]?.name));
    if (shown?.index !== wanted.index || shown?.stage !== wanted.stage) return;
    story = answer;
    draw();
  }

  function draw() {
    const { agent, stage, index } = shown;
    const { agents, stages } = model;
    const [tone, ended] = ENDS[agents.ok[agent]] ?? ENDS[2];
    const name = stages.length > 1 ? text(stages[stage]?.name) : "";
    const parts = telling.durations(agents, agent);
    morph(
      host(),
      el(
        "div",
        { class: "panel-head" },
        el("h2", { id: "panel-title" }, `Agent ${words.exact(index)}`),
        el("span", { class: `badge ${tone}` }, ended),
        el("button", { type: "button", "data-do": "close-panel", "aria-label": "Close", title: "Close (Esc)" }, "×"),
      ),
      name && el("p", { class: "note" }, `in ${name}`),
      dom.bar(
        parts.map(([, what, value]) => `${what} ${words.seconds(value)}`).join(", "),
        parts[3][2],
        parts.slice(0, 3).map(([color, what, value]) => [color, value, `${what}: ${words.seconds(value)}`]),
      ),
      el(
        "dl",
        { class: "pairs" },
        pair("Began at", words.seconds(agents.start[agent] / 100)),
        parts.map(([, what, value]) => pair(what.charAt(0).toUpperCase() + what.slice(1), words.seconds(value))),
        pair("Requests", words.exact(agents.turns[agent])),
      ),
      saidOf(stage, index),
      story && el("h3", null, "Story"),
      story && el("pre", { class: "story" }, story.said),
      steps(agent),
    );
  }

  function pair(name, value) {
    return el("div", null, el("dt", null, name), el("dd", null, value));
  }

  /** What the view happens to have of its words: as an example of a failure, or as one of the last results. */
  function saidOf(stage, index) {
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
        el("h3", null, "Why it failed"),
        el("p", null, el("code", null, failed.kind)),
        el("p", { class: "said" }, text(failed.message)),
      ],
      result &&
        !failed &&
        text(result.text) && [el("h3", null, "Result"), el("p", { class: "said" }, text(result.text))],
    ];
  }

  function steps(agent) {
    const { agents } = model;
    const [first, last] = [agents.first[agent], agents.first[agent + 1]];
    const rows = [];
    let clock = agents.start[agent];
    for (let at = first; at < last && rows.length < MOST_STEPS; at++) {
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
        el("span", { class: "at" }, words.seconds(from / 100)),
        el("span", { class: `key ${tone}` }, did),
        el("b", null, words.seconds((to - from) / 100)),
      );
    });
    return [el("h3", null, "Step by step"), el("ol", { class: "steps" }, items)];
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
