"use strict";
/* The bar above the timeline: which agents to show, in which order, and which one to find. */
const asking = (() => {
  const { el, morph } = dom;

  const START = { order: "start", only: "all", stage: "all", isOfShownTime: true };
  const HELP = {
    touch: "Tap an agent for what it did; pinch to zoom, swipe sideways to move.",
    mouse:
      "Drag to zoom into a part, Ctrl + wheel or pinch to zoom, Shift + wheel to move, double-click for the whole " +
      "run. Arrow keys choose an agent, Enter opens it.",
  };

  const bar = () => document.getElementById("rows-bar");

  function draw({ agents, stages }) {
    const counts = [0, 0, 0];
    for (let agent = 0; agent < agents.count; agent++) counts[agents.ok[agent]] += 1;
    const only = [
      ["all", `all ${words.exact(agents.count)}`],
      ["failed", `failed (${words.exact(counts[0])})`],
      ["answered", `answered (${words.exact(counts[1])})`],
      ["under way", `under way (${words.exact(counts[2])})`],
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
          ...stages.map((stage, at) => [String(at), reading.text(stage.name) || `stage ${at + 1}`]),
        ]),
      el(
        "label",
        { title: "Leave out agents that began later or ended earlier than the part of the run that is shown" },
        el("input", { type: "checkbox", "data-ask": "isOfShownTime", checked: true }),
        el("span", null, "only those of the shown time"),
      ),
      el("form", { id: "find" }, el("label", null, el("span", null, "Find"), index()), el("button", null, "Go")),
      el(
        "div",
        { class: "buttons", role: "group", "aria-label": "Height of rows" },
        button("rows-lower", "−", "Lower rows"),
        button("rows-taller", "+", "Taller rows"),
        button("rows-fit", "Fit", "All agents at once"),
      ),
    );
    const isTouched = window.matchMedia("(pointer: coarse)").matches;
    document.getElementById("rows-help").textContent = isTouched ? HELP.touch : HELP.mouse;
  }

  function choice(label, name, options) {
    return el(
      "label",
      null,
      el("span", null, label),
      el(
        "select",
        { "data-ask": name },
        options.map(([value, said]) => el("option", { value }, said)),
      ),
    );
  }

  function index() {
    return el("input", { name: "index", placeholder: "index", inputmode: "numeric", size: "7", autocomplete: "off" });
  }

  function button(what, sign, name) {
    return el("button", { type: "button", "data-do": what, "aria-label": name, title: name }, sign);
  }

  /** Says of an agent whether it is one of those that were asked for. */
  function keeper(asked, agents) {
    const end = asked.only === "all" ? -1 : telling.ENDS.indexOf(asked.only);
    const stage = asked.stage === "all" ? -1 : Number(asked.stage);
    const isWhole = !asked.isOfShownTime || span.isWhole;
    const [from, to] = isWhole ? [-Infinity, Infinity] : [span.from * 100, span.to * 100];
    return (agent) =>
      (end < 0 || agents.ok[agent] === end) &&
      (stage < 0 || agents.stage[agent] === stage) &&
      agents.start[agent] <= to &&
      agents.end[agent] >= from;
  }

  /** Makes the bar say what was asked for by other means. */
  function fill(asked) {
    for (const select of bar().querySelectorAll("select")) select.value = asked[select.dataset.ask];
  }

  function attach(show, find) {
    bar().addEventListener("change", ({ target }) => {
      if (target.dataset.ask)
        show({ [target.dataset.ask]: target.type === "checkbox" ? target.checked : target.value });
    });
    bar().addEventListener("submit", (event) => {
      event.preventDefault();
      find(event.target.elements.index.value);
    });
  }

  return { START, draw, keeper, fill, attach };
})();
