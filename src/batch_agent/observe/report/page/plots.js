"use strict";
/* SVG charts over time: stacked areas and lines on a time axis that all charts share. */
const plots = (() => {
  const { el, svg } = dom;
  const { number } = runModel;

  const RIGHT = 16;
  const left = () => (window.innerWidth < 600 ? 40 : 54);
  /** A limit more than this many times above the other values is written in the legend and not drawn. */
  const MAX_LIMIT_RATIO = 5;
  const MARKS = { resume: "resumed", pause: "paused" };

  /** Maps times to x positions in an element of this width, and back. */
  function scale(width) {
    const plot = Math.max(1, width - left() - RIGHT);
    return {
      left: left(),
      right: left() + plot,
      plot,
      x: (time) => left() + ((time - span.from) / (span.to - span.from)) * plot,
      time: (x) => span.from + ((x - left()) / plot) * (span.to - span.from),
    };
  }

  /** One chart with its legend, which also explains these `kinds` of marks. */
  function figure(chart, marks, kinds, width) {
    const top = topOf(chart);
    const hiddenLimits = chart.lines.filter((one) => one.isLimit && maximum(one.values) > top);
    const legend = [...chart.bands, ...chart.lines, ...kinds.map((tone) => ({ name: MARKS[tone], tone }))].map(
      (one) => [
        el(
          "span",
          { class: `key ${one.tone} ${one.isLimit ? "dashed" : ""} ${one.isShare ? "thin" : ""}` },
          one.name,
          hiddenLimits.includes(one) && ` (${format.exact(one.values.findLast(format.isNumber))}, above the chart)`,
        ),
        " ",
      ],
    );
    return el(
      "figure",
      { class: "chart", id: chart.id, "data-key": chart.id },
      el(
        "figcaption",
        null,
        el("h3", null, chart.title, chart.unit && el("span", { class: "note" }, ` ${chart.unit}`)),
        el("p", { class: "legend" }, legend),
      ),
      el(
        "div",
        { class: "plot", tabindex: "0", role: "img", "aria-label": described(chart) },
        drawing(chart, marks, top, width),
        el("div", { class: "crosshair", "data-own": true, hidden: true }),
        el("div", { class: "selection", "data-own": true, hidden: true }),
      ),
    );
  }

  function described(chart) {
    const most = chart.bands.map((band) => `${band.name} up to ${chart.write(maximum(band.values))}`).join(", ");
    return `${chart.title} over time: ${most}. Arrow keys read values, plus and minus zoom.`;
  }

  function drawing(chart, marks, top, width) {
    const { height } = chart;
    const xScale = scale(width);
    const bottom = height - 20;
    const y = (value) => 6 + (bottom - 6) * (1 - value / top);
    const ys = { left: y, share: (value) => y(value * top) };
    const range = visible(chart.at);
    const clip = `clip-${chart.id}`;
    return svg(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      svg("clipPath", { id: clip }, svg("rect", { x: xScale.left, y: 0, width: xScale.plot, height: bottom + 1 })),
      grid(top, y, xScale, chart),
      timeAxis(xScale, bottom),
      svg(
        "g",
        { "clip-path": `url(#${clip})` },
        marked(marks, xScale, bottom),
        areas(chart, range, xScale, y),
        chart.lines.map((one) =>
          svg("path", {
            class: `line ${one.tone} ${one.isLimit ? "dashed" : ""}`,
            d: path(chart.at, one.values, range, xScale.x, one.isShare ? ys.share : ys.left, one.isStep),
          }),
        ),
      ),
      chart.lines.some((one) => one.isShare) && shareAxis(xScale, y, top),
    );
  }

  function grid(top, y, xScale, chart) {
    const steps = chart.height > 140 ? 4 : 2;
    const whole = top % steps === 0 ? steps : top % 2 === 0 ? 2 : 1;
    return Array.from({ length: whole + 1 }, (_, at) => (top * at) / whole).map((value) => [
      svg("line", { class: "grid", x1: xScale.left, x2: xScale.right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: xScale.left - 6, y: y(value) + 3.5, "text-anchor": "end" }, format.short(value)),
    ]);
  }

  function shareAxis(xScale, y, top) {
    return [
      ["100 %", top],
      ["50 %", top / 2],
    ].map(([label, value]) =>
      svg(
        "text",
        { class: "tick share", x: xScale.right - 4, y: y(value) + (value === top ? 11 : -3), "text-anchor": "end" },
        label,
      ),
    );
  }

  function timeAxis(xScale, bottom) {
    const { step, found } = span.ticks(xScale.plot, 90);
    return found.map((time) => [
      svg("line", { class: "grid faint", x1: xScale.x(time), x2: xScale.x(time), y1: 6, y2: bottom }),
      svg(
        "text",
        { class: "tick", x: xScale.x(time), y: bottom + 14, "text-anchor": anchor(xScale, xScale.x(time)) },
        format.axis(time, step),
      ),
    ]);
  }

  const anchor = (xScale, x) => (x < xScale.left + 12 ? "start" : x > xScale.right - 22 ? "end" : "middle");

  function marked(marks, xScale, bottom) {
    return marks.map((mark) => {
      const x = xScale.x(mark.at);
      const width = Math.max(mark.seconds ? 2 : 0, xScale.x(mark.at + mark.seconds) - x);
      return mark.tone === "pause"
        ? svg("rect", { class: "mark pause", x, y: 0, width, height: bottom })
        : svg("line", { class: "mark resume", x1: x, x2: x, y1: 0, y2: bottom });
    });
  }

  /** First and last index of the points in the visible range, and one more on each side. */
  function visible(at) {
    let [first, last] = [0, at.length - 1];
    while (first < last && at[first + 1] < span.from) first += 1;
    while (last > first && at[last - 1] > span.to) last -= 1;
    return [first, last];
  }

  function areas(chart, range, xScale, y) {
    const floor = new Float64Array(chart.at.length);
    return chart.bands.map((band) => {
      const [up, down] = [[], []];
      for (let at = range[0]; at <= range[1]; at++) {
        const x = xScale.x(chart.at[at]).toFixed(1);
        down.push(`${x},${y(floor[at]).toFixed(1)}`);
        floor[at] += number(band.values[at]) ?? 0;
        up.push(`${x},${y(floor[at]).toFixed(1)}`);
      }
      return svg("path", { class: `area ${band.tone}`, d: `M${up.join("L")}L${down.reverse().join("L")}Z` });
    });
  }

  function path(times, values, range, x, y, isStep) {
    let drawn = "";
    let before = null;
    for (let at = range[0]; at <= range[1]; at++) {
      const value = number(values[at]);
      if (value !== null) {
        const px = x(times[at]).toFixed(1);
        if (before === null) drawn += `M${px},${y(value).toFixed(1)}`;
        else drawn += isStep ? `H${px}V${y(value).toFixed(1)}` : `L${px},${y(value).toFixed(1)}`;
      }
      before = value;
    }
    return drawn;
  }

  /** Upper end of the y axis, rounded up. A limit far above the other values is left out: it would flatten them. */
  function topOf(chart) {
    let most = 0;
    for (let at = 0; at < chart.at.length; at++) {
      most = Math.max(
        most,
        chart.bands.reduce((sum, band) => sum + (number(band.values[at]) ?? 0), 0),
      );
    }
    for (const one of chart.lines) if (!one.isShare && !one.isLimit) most = Math.max(most, maximum(one.values));
    for (const one of chart.lines) {
      const limit = one.isLimit ? maximum(one.values) : 0;
      if (most === 0 || limit <= MAX_LIMIT_RATIO * most) most = Math.max(most, limit);
    }
    return rounded(most);
  }

  function rounded(value) {
    if (!(value > 0)) return 1;
    const power = 10 ** Math.floor(Math.log10(value));
    const top = power * [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value * 0.999);
    return value <= 4 ? Math.ceil(value) : Math.round(top * 1e6) / 1e6;
  }

  function maximum(values) {
    return values.reduce((most, value) => (format.isNumber(value) && value > most ? value : most), 0);
  }

  return { scale, figure, timeAxis };
})();
