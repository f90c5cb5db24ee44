"use strict";
/* Charts over time: active agents, requests in flight, the KV cache, pauses and resumes. */
const charts = (() => {
  const { morph } = dom;
  const { list, record, text, number } = runModel;

  let shown = [];
  let marks = [];

  function set(model) {
    const activity = runModel.columns(model.activity);
    const series = runModel.columns(model.series);
    shown = [agentsChart(activity), slotsChart(series), cacheChart(series)].filter(Boolean);
    marks = [
      ...list(model.processes)
        .slice(1)
        .filter(number)
        .map((at, process) => ({ at, seconds: 0, tone: "resume", label: `resumed by process ${process + 2}` })),
      ...list(model.pauses)
        .map(record)
        .filter((pause) => number(pause.at) !== null)
        .map((pause) => ({
          at: pause.at,
          seconds: number(pause.seconds) ?? 0,
          tone: "pause",
          label: `paused for ${format.seconds(pause.seconds)}: ${text(pause.reason)}`,
        })),
    ];
    document.getElementById("time").hidden = shown.length === 0 && model.agents.count === 0;
  }

  const line = (name, tone, values, more) => values && { name, tone, values, ...more };

  function agentsChart(data) {
    if (!data.at || data.at.length < 2) return null;
    const bands = [
      line("generating", "generating", data.generating),
      line("in tools", "tools", data.tools),
      line("waiting", "waiting", data.waiting),
    ].filter(Boolean);
    return {
      id: "agents-chart",
      title: "Active agents",
      height: 170,
      at: data.at,
      bands,
      lines: [],
      tooltipOnly: [line("done", "answered", data.done)].filter(Boolean),
      write: format.exact,
    };
  }

  function slotsChart(data) {
    if (!data.at || data.at.length < 2 || !data.inflight) return null;
    const lines = [
      line("resident in the KV cache", "residency", data.residents),
      line("limit", "limit", data.limit, { isStep: true, isLimit: true }),
    ].filter(Boolean);
    const tooltipOnly = [
      line("running (server)", "plain", data.server_running),
      line("queued (server)", "plain", data.server_waiting),
    ].filter(Boolean);
    return {
      id: "slots-chart",
      title: "Requests in flight",
      height: 120,
      at: data.at,
      bands: [line("in flight", "generating", data.inflight)],
      lines,
      tooltipOnly,
      write: format.exact,
    };
  }

  function cacheChart(data) {
    if (!data.at || data.at.length < 2 || !(data.kv_held || data.kv_usage)) return null;
    const lines = [
      line("limit", "limit", data.kv_limit, { isStep: true, isLimit: true }),
      line("in use (server)", "tools", data.kv_usage, {
        isShare: true,
        write: (value) => format.share(value, 1),
      }),
    ].filter(Boolean);
    return {
      id: "cache-chart",
      title: "KV cache",
      unit: "tokens",
      height: 120,
      at: data.at,
      bands: [line("held by agents", "residency", data.kv_held)].filter(Boolean),
      lines,
      tooltipOnly: [],
      write: format.exact,
    };
  }

  function draw() {
    const host = document.getElementById("charts");
    const width = host.clientWidth;
    if (!width) return;
    const kinds = [...new Set(marks.map((mark) => mark.tone))];
    morph(
      host,
      shown.map((chart, at) => plots.figure(chart, marks, at === 0 ? kinds : [], width)),
    );
  }

  /** All values at this time, for the tooltip. */
  function valuesAt(time) {
    const found = [];
    for (const chart of shown) {
      const at = nearest(chart.at, time);
      for (const one of [...chart.bands, ...chart.lines, ...chart.tooltipOnly]) {
        const value = number(one.values[at]);
        if (value !== null)
          found.push({
            chart: chart.title,
            tone: one.isLimit ? "dashed" : one.tone,
            name: one.name,
            value: (one.write ?? chart.write)(value),
          });
      }
    }
    return found;
  }

  function marksAt(time, slack) {
    return marks
      .filter((mark) => time >= mark.at - slack && time <= mark.at + mark.seconds + slack)
      .map((mark) => mark.label);
  }

  function nearest(at, time) {
    let [low, high] = [0, at.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (at[middle] <= time) low = middle;
      else high = middle;
    }
    return time - at[low] <= at[high] - time ? low : high;
  }

  return { set, draw, valuesAt, marksAt };
})();
