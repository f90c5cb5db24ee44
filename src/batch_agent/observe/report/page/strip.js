"use strict";
/* Range selector over the whole run: drag to select a range, drag its ends to resize it, drag its middle to move it. */
const strip = (() => {
  const { el, svg, morph } = dom;
  const HEIGHT = 34;
  const HANDLE = 12;
  let silhouette = null;
  let drag = null;

  const host = () => document.getElementById("range");

  function set(model) {
    const { at = [], generating = [], tools = [], waiting = [] } = runModel.columns(model.activity);
    const columns = [generating, tools, waiting];
    silhouette =
      at.length < 2
        ? null
        : { at, values: at.map((_, point) => runModel.sum(columns.map((column) => column[point])) ?? 0) };
  }

  function draw() {
    const width = host().clientWidth;
    if (!width) return;
    const x = (time) => (time / span.whole) * width;
    const [first, last] = [x(span.from), Math.max(x(span.to), x(span.from) + 2)];
    morph(
      host(),
      backdrop(width, x),
      el("div", { class: "shade", style: { left: "0", width: `${first}px` } }),
      el("div", { class: "shade", style: { left: `${last}px`, right: "0" } }),
      el("div", { class: "window", style: { left: `${first}px`, width: `${last - first}px` } }),
      handle("from", first, span.from),
      handle("to", last, span.to),
    );
    host().classList.toggle("whole", span.isWhole);
    for (const button of document.querySelectorAll('[data-do="zoom-whole"], [data-do="zoom-out"]'))
      button.disabled = span.isWhole;
  }

  function handle(end, x, time) {
    return el("div", {
      class: `handle ${end}`,
      "data-end": end,
      tabindex: "0",
      role: "slider",
      "aria-label": end === "from" ? "Start of the visible range" : "End of the visible range",
      "aria-valuemin": 0,
      "aria-valuemax": span.whole.toFixed(2),
      "aria-valuenow": time.toFixed(2),
      "aria-valuetext": format.seconds(time),
      style: { left: `${x}px` },
    });
  }

  function backdrop(width, x) {
    const most = silhouette ? Math.max(...silhouette.values, 1) : 1;
    const y = (value) => HEIGHT - 2 - (HEIGHT - 6) * (value / most);
    const points = silhouette?.at.map((time, at) => `${x(time).toFixed(1)},${y(silhouette.values[at]).toFixed(1)}`);
    const [first, last] = [x(silhouette?.at[0]).toFixed(1), x(silhouette?.at.at(-1)).toFixed(1)];
    const d = `M${first},${HEIGHT}L${points?.join("L")}L${last},${HEIGHT}Z`;
    return svg(
      "svg",
      { width, height: HEIGHT, "aria-hidden": "true" },
      silhouette && svg("path", { class: "area silhouette", d }),
    );
  }

  function timeOf(event) {
    const box = host().getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * span.whole;
  }

  function begin(event) {
    if (event.button !== 0) return;
    const time = timeOf(event);
    const slack = (HANDLE / host().clientWidth) * span.whole;
    if (!span.isWhole && Math.abs(time - span.from) < slack) drag = { kind: "from" };
    else if (!span.isWhole && Math.abs(time - span.to) < slack) drag = { kind: "to" };
    else if (!span.isWhole && time > span.from && time < span.to) drag = { kind: "move", last: time };
    else drag = { kind: "new", anchor: time };
    host().setPointerCapture(event.pointerId);
  }

  function move(event) {
    if (!drag) return;
    const time = Math.min(Math.max(0, timeOf(event)), span.whole);
    if (drag.kind === "from") span.show(Math.min(time, span.to), span.to);
    else if (drag.kind === "to") span.show(span.from, Math.max(time, span.from));
    else if (drag.kind === "move") {
      span.pan(time - drag.last);
      drag.last = time;
    } else if (Math.abs(time - drag.anchor) > span.whole / 200)
      span.show(Math.min(time, drag.anchor), Math.max(time, drag.anchor));
  }

  function key(event) {
    const end = event.target.getAttribute?.("data-end");
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!end || !step) return;
    event.preventDefault();
    const by = step * Math.max((span.to - span.from) / 20, span.whole / 500);
    if (end === "from") span.show(Math.min(Math.max(0, span.from + by), span.to), span.to);
    else span.show(span.from, Math.max(Math.min(span.whole, span.to + by), span.from));
  }

  function attach() {
    host().addEventListener("pointerdown", begin);
    host().addEventListener("pointermove", move);
    for (const end of ["pointerup", "pointercancel"])
      host().addEventListener(end, () => {
        drag = null;
      });
    host().addEventListener("dblclick", () => span.reset());
    host().addEventListener("keydown", key);
  }

  return { set, draw, attach };
})();
