"use strict";
/* Run model: parses the JSON of a run. Any field of the input may be missing or null; those of the result are not. */
const runModel = (() => {
  const { isNumber } = format;

  const list = (value) => (Array.isArray(value) ? value : []);
  const record = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});
  const text = (value) => (value === null || value === undefined ? "" : String(value));
  const number = (value) => (isNumber(value) ? value : null);

  /** Sum of the numbers among these values; null without any. */
  function sum(values) {
    const known = values.filter(isNumber);
    return known.length ? known.reduce((total, value) => total + value, 0) : null;
  }

  /** Columns of a time series, for the points with a valid time in `at`. Columns without any number are left out. */
  function columns(raw) {
    const all = Object.entries(record(raw)).map(([name, values]) => [name, list(values)]);
    const times = list(record(raw).at);
    const kept = times.map((time, point) => (isNumber(time) ? point : -1)).filter((point) => point >= 0);
    return Object.fromEntries(
      all
        .map(([name, values]) => [name, kept.map((point) => number(values[point]))])
        .filter(([, values]) => values.some(isNumber)),
    );
  }

  function run(raw) {
    const model = record(raw);
    const stages = list(model.stages).map(record);
    const agents = decoded(record(model.timeline), stages.length);
    const seconds = Math.max(number(model.seconds) ?? 0, agents.last);
    const isRunning = model.state === "running";
    const results = resultsOf(record(model.results), agents, stages);
    return { ...model, seconds, isRunning, stages, agents, results, totals: totals(stages) };
  }

  /** Columns of the results, in the order of the agents. Numbers of agents in progress are null. */
  function resultsOf(raw, agents, stages) {
    const errors = list(raw.errors).map((error) => ({ kind: text(list(error)[0]), message: text(list(error)[1]) }));
    const finishes = list(raw.finishes);
    const every = (value) => Array.from({ length: agents.count }, (_, agent) => value(agent));
    const figure = (name) => {
      const values = list(raw[name]);
      return every((agent) => (agents.ok[agent] === 2 ? null : number(values[agent])));
    };
    const words = (name) => {
      const values = list(raw[name]);
      return every((agent) => text(values[agent]));
    };
    const [tokensIn, cached, tokensOut] = [figure("tokens_in"), figure("cached"), figure("tokens_out")];
    const input = words("input");
    const key = words("key");
    return {
      key,
      hasKeys: key.some(Boolean),
      finish: every((agent) => text(finishes[list(raw.finish)[agent]])),
      error: every((agent) => errors[list(raw.error)[agent]] ?? null),
      turns: figure("turns"),
      seconds: figure("seconds"),
      tokensIn,
      cached,
      tokensOut,
      cost: figure("cost"),
      scores: Object.entries(record(raw.scores)).map(([name, values]) => ({
        name,
        values: every((agent) => number(list(values)[agent])),
      })),
      input,
      answer: words("answer"),
      hasInputs: input.some(Boolean),
      isPriced: stages.some((stage) => list(stage.prices).length > 0),
    };
  }

  /** Status of an agent. One that has no result is running only as long as its run is. */
  function status({ agents, isRunning }, agent) {
    return ["failed", "answered"][agents.ok[agent]] ?? (isRunning ? "running" : "interrupted");
  }

  /** Whether the answer is text that was cut at max_tokens. An answer that fits a schema is complete. */
  function isTruncated({ agents, results, stages }, agent) {
    if (agents.ok[agent] !== 1 || results.finish[agent] !== "length") return false;
    return !record(stages[agents.stage[agent]]?.description).output_schema;
  }

  function totals(stages) {
    const all = (name) => sum(stages.map((stage) => stage[name]));
    const usage = (name) => sum(stages.map((stage) => record(stage.usage)[name]));
    const state = (name) => sum(stages.map((stage) => record(stage.states)[name]));
    const isCounted = stages.length > 0 && stages.every((stage) => isNumber(stage.total));
    const [answered, failed] = [all("answered"), all("failed")];
    return {
      answered,
      failed,
      done: sum([answered, failed]),
      total: isCounted ? all("total") : null,
      started: all("started"),
      resumed: all("resumed") ?? 0,
      turns: all("turns"),
      retries: all("retries"),
      compactions: all("compactions"),
      input: usage("input"),
      cached: usage("cached"),
      output: usage("output"),
      cost: all("cost"),
      lanes: laneCosts(stages),
      isPriced: stages.every((stage) => isNumber(stage.cost)),
      waiting: state("waiting") ?? 0,
      generating: state("generating") ?? 0,
      tools: state("tools") ?? 0,
    };
  }

  /** What was spent in each lane, by name; empty if all was in the lane standard. */
  function laneCosts(stages) {
    const costs = new Map();
    for (const stage of stages) {
      const lanes = list(stage.lanes).map(record);
      const spent = lanes.length > 0 ? lanes : [{ lane: "standard", cost: stage.cost }];
      for (const { lane, cost } of spent) if (isNumber(cost)) costs.set(text(lane), (costs.get(text(lane)) ?? 0) + cost);
    }
    return costs.size === 1 && costs.has("standard") ? [] : [...costs];
  }

  /** Columns of all agents, times in 1/100 s. The segments of agent `a`: from `first[a]` up to `first[a + 1]`. */
  function decoded(timeline, stages) {
    const index = list(timeline.index);
    const count = index.length;
    const agents = {
      count,
      index: new Float64Array(count),
      sample: new Uint32Array(count),
      hasSamples: list(timeline.sample).length > 0,
      stage: new Uint16Array(count),
      ok: new Uint8Array(count),
      start: new Float64Array(count),
      end: new Float64Array(count),
      generating: new Float64Array(count),
      tools: new Float64Array(count),
      turns: new Uint32Array(count),
      first: new Uint32Array(count + 1),
      last: 0,
    };
    const [stage, ok, start] = [list(timeline.stage), list(timeline.ok), list(timeline.start)];
    const sample = list(timeline.sample);
    for (let agent = 0; agent < count; agent++) {
      agents.index[agent] = number(index[agent]) ?? -1;
      agents.sample[agent] = number(sample[agent]) ?? 0;
      agents.stage[agent] = Math.min(number(stage[agent]) ?? 0, Math.max(stages - 1, 0));
      agents.ok[agent] = number(ok[agent]) ?? 2;
      agents.start[agent] = number(start[agent]) ?? 0;
    }
    return segmented(agents, decodedBase64(text(timeline.segments)));
  }

  /** Index of an agent, with the number of its sample where inputs have several. */
  function nameOf(agents, agent) {
    const index = format.exact(agents.index[agent]);
    return agents.hasSamples ? `${index}~${agents.sample[agent]}` : index;
  }

  function segmented(agents, bytes) {
    const kind = new Uint8Array(bytes.length / 3 + 1);
    const from = new Float64Array(kind.length);
    const to = new Float64Array(kind.length);
    let at = 0;
    let made = 0;
    function varint() {
      let value = 0;
      let scale = 1;
      while (at < bytes.length) {
        const byte = bytes[at++];
        value += (byte & 127) * scale;
        if (byte < 128) break;
        scale *= 128;
      }
      return value;
    }
    for (let agent = 0; agent < agents.count; agent++) {
      agents.first[agent] = made;
      let clock = agents.start[agent];
      for (let left = varint(); left > 0 && at < bytes.length; left--) {
        const does = varint();
        const begins = clock + varint();
        clock = begins + varint();
        if (does === 1) {
          agents.generating[agent] += clock - begins;
          agents.turns[agent] += 1;
        } else if (does === 2) agents.tools[agent] += clock - begins;
        kind[made] = does;
        from[made] = begins;
        to[made] = clock;
        made += 1;
      }
      agents.end[agent] = clock;
      agents.last = Math.max(agents.last, clock / 100);
    }
    agents.first[agents.count] = made;
    return { ...agents, kind: kind.subarray(0, made), from: from.subarray(0, made), to: to.subarray(0, made) };
  }

  function decodedBase64(encoded) {
    try {
      const letters = atob(encoded);
      const bytes = new Uint8Array(letters.length);
      for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
      return bytes;
    } catch {
      return new Uint8Array(0);
    }
  }

  /** State of the agent at this time (1/100 s): 0 waiting, 1 generating, 2 in tools; null outside its run time. */
  function stateAt(agents, agent, time) {
    if (time < agents.start[agent] || time > agents.end[agent]) return null;
    for (let at = agents.first[agent]; at < agents.first[agent + 1]; at++) {
      if (time >= agents.from[at] && time < agents.to[at]) return agents.kind[at];
    }
    return 0;
  }

  /** Agent numbers that `keep` accepts, stage by stage in this order. */
  function ordered(agents, order, keep) {
    let count = 0;
    const rows = new Uint32Array(agents.count);
    for (let agent = 0; agent < agents.count; agent++) if (keep(agent)) rows[count++] = agent;
    const kept = rows.subarray(0, count);
    const { stage, index, start, end } = agents;
    const by = {
      start: (a, b) => start[a] - start[b],
      duration: (a, b) => end[b] - start[b] - (end[a] - start[a]),
      index: (a, b) => index[a] - index[b],
    }[order];
    const compare = (a, b) => stage[a] - stage[b] || by(a, b) || a - b;
    return kept.every((agent, row) => row === 0 || compare(kept[row - 1], agent) <= 0) ? kept : kept.sort(compare);
  }

  return { list, record, text, number, sum, columns, run, status, isTruncated, stateAt, ordered, nameOf };
})();
