"use strict";
/* Filter bar of the agent timeline: which agents to show, in which order, and search by index. */
const timelineFilters = (() => {
  const { el, morph } = dom;

  const DEFAULTS = { order: "start", only: "all", stage: "all", isVisibleOnly: true };
  const HELP = {
    touch: "Tap an agent for details. Pinch to zoom, swipe sideways to pan.",
    mouse:
      "Drag to zoom in, Ctrl + wheel or pinch to zoom, Shift + wheel to pan, double-click to show the whole run. " +
      "Arrow keys select an agent, Enter opens it.",
  };

  const bar = () => document.getElementById("rows-bar");

  function draw({ agents, stages, isRunning }) {
    const counts = [0, 0, 0];
    for (let agent = 0; agent < agents.count; agent++) counts[agents.ok[agent]] += 1;
    const only = [
      ["all", `all ${format.exact(agents.count)}`],
      ["failed", `failed (${format.exact(counts[0])})`],
      ["answered", `answered (${format.exact(counts[1])})`],
      ["in progress", `${isRunning ? "running" : "interrupted"} (${format.exact(counts[2])})`],
    ];
    morph(
      bar(),
      choice("Show", "only", only),
      choice("Order", "order", [
        ["start", "by start"],
        ["duration", "longest first"],
        ["index", "by index"],
      ]),
      stages.length > 1 &&
        choice("Stage", "stage", [
          ["all", "all"],
          ...stages.map((stage, at) => [String(at), runModel.text(stage.name) || `stage ${at + 1}`]),
        ]),
      el(
        "label",
        { title: "Hide agents that started after or ended before the visible time range" },
        el("input", { type: "checkbox", "data-filter": "isVisibleOnly", checked: true }),
        el("span", null, "only in the visible range"),
      ),
      el("form", { id: "find" }, el("label", null, el("span", null, "Find"), index()), el("button", null, "Go")),
      el(
        "div",
        { class: "buttons", role: "group", "aria-label": "Height of rows" },
        button("rows-shorter", "−", "Shorter rows"),
        button("rows-taller", "+", "Taller rows"),
        button("rows-fit", "Fit", "Fit all agents"),
      ),
    );
    const isTouch = window.matchMedia("(pointer: coarse)").matches;
    document.getElementById("rows-help").textContent = isTouch ? HELP.touch : HELP.mouse;
  }

  function choice(label, name, options) {
    return el(
      "label",
      null,
      el("span", null, label),
      el(
        "select",
        { "data-filter": name },
        options.map(([value, name]) => el("option", { value }, name)),
      ),
    );
  }

  function index() {
    return el("input", { name: "index", placeholder: "index", inputmode: "numeric", size: "7", autocomplete: "off" });
  }

  function button(what, sign, name) {
    return el("button", { type: "button", "data-do": what, "aria-label": name, title: name }, sign);
  }

  /** Function that returns whether an agent passes the filters. */
  function predicate(filters, agents) {
    const end = filters.only === "all" ? -1 : tooltips.OUTCOMES.indexOf(filters.only);
    const stage = filters.stage === "all" ? -1 : Number(filters.stage);
    const isWhole = !filters.isVisibleOnly || span.isWhole;
    const [from, to] = isWhole ? [-Infinity, Infinity] : [span.from * 100, span.to * 100];
    return (agent) =>
      (end < 0 || agents.ok[agent] === end) &&
      (stage < 0 || agents.stage[agent] === stage) &&
      agents.start[agent] <= to &&
      agents.end[agent] >= from;
  }

  /** Shows filters that were set elsewhere in the bar. */
  function sync(filters) {
    for (const select of bar().querySelectorAll("select")) select.value = filters[select.dataset.filter];
  }

  function attach(show, find) {
    bar().addEventListener("change", ({ target }) => {
      if (target.dataset.filter)
        show({ [target.dataset.filter]: target.type === "checkbox" ? target.checked : target.value });
    });
    bar().addEventListener("submit", (event) => {
      event.preventDefault();
      find(event.target.elements.index.value);
    });
  }

  return { DEFAULTS, draw, predicate, sync, attach };
})();
