"use strict";
/* What agents did, told in a few lines to whoever points at them. */
const telling = (() => {
  const { el } = dom;
  const { exact, seconds } = words;

  const DOING = ["waiting", "generating", "in tools"];
  const ENDS = ["failed", "answered", "under way"];
  const TONES = ["failed", "answered", "plain"];

  /** Lines for the tooltip. */
  function one({ agents, stages }, agent, time) {
    const stage = stages.length > 1 ? ` · ${reading.text(stages[agents.stage[agent]]?.name)}` : "";
    const end = agents.ok[agent];
    return [
      el("div", { class: "when" }, `Agent ${exact(agents.index[agent])}${stage}`, key(TONES[end], ENDS[end])),
      value(el("span", null, `at ${words.moment(time, span.to - span.from)}`), doing(agents, agent, time)),
      durations(agents, agent).map(([tone, name, took]) => value(key(tone, name), seconds(took))),
    ];
  }

  /** The same for agents that share a row of pixels. */
  function many({ agents }, rows, time) {
    const now = [0, 0, 0];
    let failed = 0;
    for (const agent of rows) {
      const state = reading.stateAt(agents, agent, time * 100);
      if (state !== null) now[state] += 1;
      if (agents.ok[agent] === 0) failed += 1;
    }
    return [
      el("div", { class: "when" }, `${words.plural(rows.length, "agent")} from ${exact(agents.index[rows[0]])}`),
      el("div", { class: "group" }, `at ${words.moment(time, span.to - span.from)}`),
      value(key("generating", DOING[1]), exact(now[1])),
      value(key("tools", DOING[2]), exact(now[2])),
      value(key("waiting", DOING[0]), exact(now[0])),
      failed > 0 && value(key("failed", "failed in the end"), exact(failed)),
      el("div", { class: "group" }, "click to look closer"),
    ];
  }

  function doing(agents, agent, time) {
    const state = reading.stateAt(agents, agent, time * 100);
    if (state !== null) return DOING[state];
    return time * 100 < agents.start[agent] ? "not begun" : ENDS[agents.ok[agent]];
  }

  /** [tone, name, seconds] of what an agent did. */
  function durations(agents, agent) {
    const all = (agents.end[agent] - agents.start[agent]) / 100;
    const [generating, tools] = [agents.generating[agent] / 100, agents.tools[agent] / 100];
    return [
      ["generating", "generating", generating],
      ["tools", "in tools", tools],
      ["waiting", "waiting", Math.max(0, all - generating - tools)],
      ["plain", "in all", all],
    ];
  }

  /** For whoever hears the page. */
  function inWords(agents, agent) {
    const took = durations(agents, agent).map(([, name, value]) => `${name} ${seconds(value)}`);
    return `Agent ${agents.index[agent]}, ${ENDS[agents.ok[agent]]}: ${took.join(", ")}`;
  }

  const key = (tone, name) => el("span", { class: `key ${tone}` }, name);
  const value = (name, said) => el("div", { class: "value" }, name, el("b", null, said));

  return { ENDS, one, many, durations, inWords };
})();
