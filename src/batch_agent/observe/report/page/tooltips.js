"use strict";
/* Tooltips of the agent timeline. */
const tooltips = (() => {
  const { el } = dom;
  const { exact, seconds } = format;

  const STATES = ["waiting", "generating", "in tools"];
  const OUTCOMES = ["failed", "answered", "in progress"];
  const TONES = ["failed", "answered", "plain"];

  /** Lines for one agent. */
  function agentLines(model, agent, time) {
    const { agents, stages } = model;
    const stage = stages.length > 1 ? ` · ${runModel.text(stages[agents.stage[agent]]?.name)}` : "";
    const end = agents.ok[agent];
    const row = model.results.key[agent];
    return [
      el("div", { class: "when" }, `Agent ${runModel.nameOf(agents, agent)}${row && ` · ${row}`}${stage}`, key(TONES[end], runModel.status(model, agent))),
      value(el("span", null, `at ${format.moment(time, span.to - span.from)}`), stateName(model, agent, time)),
      durations(agents, agent).map(([tone, name, took]) => value(key(tone, name), seconds(took))),
    ];
  }

  /** Lines for agents that share a row of pixels. */
  function sharedRowLines({ agents }, rows, time) {
    const now = [0, 0, 0];
    let failed = 0;
    for (const agent of rows) {
      const state = runModel.stateAt(agents, agent, time * 100);
      if (state !== null) now[state] += 1;
      if (agents.ok[agent] === 0) failed += 1;
    }
    return [
      el("div", { class: "when" }, `${format.plural(rows.length, "agent")} (first: ${exact(agents.index[rows[0]])})`),
      el("div", { class: "group" }, `at ${format.moment(time, span.to - span.from)}`),
      value(key("generating", STATES[1]), exact(now[1])),
      value(key("tools", STATES[2]), exact(now[2])),
      value(key("waiting", STATES[0]), exact(now[0])),
      failed > 0 && value(key("failed", "failed"), exact(failed)),
      el("div", { class: "group" }, "click for taller rows"),
    ];
  }

  function stateName(model, agent, time) {
    const { agents } = model;
    const state = runModel.stateAt(agents, agent, time * 100);
    if (state !== null) return STATES[state];
    return time * 100 < agents.start[agent] ? "not started" : runModel.status(model, agent);
  }

  /** [tone, name, seconds] of the states of an agent, and of all together. */
  function durations(agents, agent) {
    const all = (agents.end[agent] - agents.start[agent]) / 100;
    const [generating, tools] = [agents.generating[agent] / 100, agents.tools[agent] / 100];
    return [
      ["generating", "generating", generating],
      ["tools", "in tools", tools],
      ["waiting", "waiting", Math.max(0, all - generating - tools)],
      ["plain", "total", all],
    ];
  }

  /** One line for screen readers. */
  function described(model, agent) {
    const { agents } = model;
    const took = durations(agents, agent).map(([, name, value]) => `${name} ${seconds(value)}`);
    const row = model.results.key[agent];
    return `Agent ${agents.index[agent]}${row && ` (${row})`}, ${runModel.status(model, agent)}: ${took.join(", ")}`;
  }

  const key = (tone, name) => el("span", { class: `key ${tone}` }, name);
  const value = (name, text) => el("div", { class: "value" }, name, el("b", null, text));

  return { OUTCOMES, agent: agentLines, agents: sharedRowLines, durations, described };
})();
