"use strict";
/* Side panel with the story of one agent. A live page also loads its trace from the server. */
const panel = (() => {
  const { el, morph, block } = dom;
  const { record, text } = runModel;
  const KINDS = [
    ["waiting", "waited"],
    ["generating", "generated"],
    ["tools", "ran tools"],
  ];
  const TONES = { answered: "answered", failed: "failed", running: "in-progress" };
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
    const agent = timeline.agentOf(was.stage, was.index, was.sample);
    shown = agent === null ? null : { ...was, agent };
    if (!shown) return close();
    draw();
    if (before !== model.agents.first[agent + 1] - model.agents.first[agent] + model.agents.ok[agent]) loadTrace();
  }

  function open(agent) {
    const isNew = host().hidden;
    if (isNew) opener = document.activeElement;
    const { stage, index, sample } = model.agents;
    shown = { agent, stage: stage[agent], index: index[agent], sample: sample[agent] };
    trace = live.isLive ? "Loading the trace …" : null;
    host().hidden = false;
    document.body.classList.add("with-panel");
    draw();
    host().scrollTop = 0;
    if (isNew) host().focus({ preventScroll: true });
    results.mark(agent);
    loadTrace();
  }

  function close() {
    if (host().hidden) return;
    host().hidden = true;
    shown = null;
    document.body.classList.remove("with-panel");
    timeline.deselect();
    results.mark(null);
    opener?.focus?.({ preventScroll: true });
  }

  /** The agents to step through: those of the table, or of the timeline if the table does not show this agent. */
  function neighbours() {
    const inTable = results.rows.indexOf(shown.agent);
    return inTable >= 0 ? [results.rows, inTable] : [timeline.rows, timeline.rows.indexOf(shown.agent)];
  }

  /** Opens the agent that is `by` rows further. */
  function step(by) {
    const [rows, at] = neighbours();
    const next = rows[at + by];
    if (at >= 0 && next !== undefined) timeline.open(next);
  }

  function key(event) {
    if (!shown || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") return close();
    const by = { ArrowLeft: -1, k: -1, ArrowRight: 1, j: 1 }[event.key];
    if (by && (event.target === document.body || host().contains(event.target))) {
      event.preventDefault();
      step(by);
    }
  }

  async function loadTrace() {
    if (!live.isLive || !shown) return;
    const wanted = shown;
    const loaded = await live.trace(wanted.index, text(model.stages[wanted.stage]?.name), wanted.sample);
    const isShown = (name) => shown?.[name] === wanted[name];
    if (!["stage", "index", "sample"].every(isShown)) return;
    trace = loaded;
    draw();
  }

  function draw() {
    const { agent, stage } = shown;
    const { agents, stages } = model;
    const name = stages.length > 1 ? text(stages[stage]?.name) : "";
    const key = model.results.key[agent];
    const parts = tooltips.durations(agents, agent);
    morph(
      host(),
      head(),
      (key || name) && el("p", { class: "note" }, [key, name && `in ${name}`].filter(Boolean).join(" · ")),
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
        figures(agent),
      ),
      story(agent),
      trace && block("Trace", trace, { tone: "trace" }),
      description.shared("panel", record(stages[stage]?.description)),
      steps(agent),
    );
  }

  function head() {
    const status = runModel.status(model, shown.agent);
    const [rows, at] = neighbours();
    return el(
      "div",
      { class: "panel-head" },
      el("h2", { id: "panel-title" }, `Agent ${runModel.nameOf(model.agents, shown.agent)}`),
      el("span", { class: `badge ${TONES[status] ?? "waiting"}` }, status.charAt(0).toUpperCase() + status.slice(1)),
      el(
        "span",
        { class: "buttons", role: "group", "aria-label": "Agents" },
        stepButton("panel-previous", "‹", "Previous agent (←)", at <= 0),
        stepButton("panel-next", "›", "Next agent (→)", at < 0 || at >= rows.length - 1),
      ),
      el("button", { type: "button", "data-do": "close-panel", "aria-label": "Close", title: "Close (Esc)" }, "×"),
    );
  }

  function stepButton(what, sign, name, isEnd) {
    return el("button", { type: "button", "data-do": what, disabled: isEnd, "aria-label": name, title: name }, sign);
  }

  function pair(name, value) {
    return el("div", null, el("dt", null, name), el("dd", null, value));
  }

  /** Figures of a finished agent. */
  function figures(agent) {
    const { turns, tokensIn, cached, tokensOut, cost, finish, scores } = model.results;
    if (turns[agent] === null) return null;
    return [
      pair("Turns", format.exact(turns[agent])),
      pair("Tokens in", format.exact(tokensIn[agent])),
      pair("Cached", format.exact(cached[agent])),
      pair("Tokens out", format.exact(tokensOut[agent])),
      cost[agent] !== null && pair("Cost", format.dollars(cost[agent])),
      finish[agent] && pair("Finish", finish[agent]),
      scores.map(({ name, values }) => values[agent] !== null && pair(`Score ${name}`, format.score(values[agent]))),
    ];
  }

  /** Error, input and answer of the agent, as far as the report has them. */
  function story(agent) {
    const { error, input, answer } = model.results;
    const failure = error[agent];
    return [
      failure && block("Error", dom.breakable(`${failure.kind}: ${failure.message}`), { tone: "odd" }),
      input[agent] && block("Input", input[agent]),
      answer[agent] && block(failure ? "Last reply" : "Answer", format.spaced(answer[agent])),
      !live.isLive &&
        (input[agent] || answer[agent]) &&
        el("p", { class: "note" }, "Long texts are shortened. The whole story: ", command()),
    ];
  }

  function command() {
    const name = text(model.stages[shown.stage]?.name);
    return el("code", null, `batch-agent inspect FOLDER${name && `/${name}`} --agent ${shown.index}${shown.sample ? `~${shown.sample}` : ""}`);
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
    step,
    key,
    get isOpen() {
      return shown !== null;
    },
  };
})();
