"use strict";
/* Table of results: search, filters, order and pages. Only the rows of one page are in the document. */
const results = (() => {
  const { el, section, agentButton } = dom;
  const { text } = runModel;
  const { exact, seconds } = format;

  const isPhone = () => window.matchMedia("(max-width: 640px)").matches;
  const perPage = () => (isPhone() ? 10 : 20);
  const NOTHING = "–";
  const TONES = { answered: "answered", failed: "failed" };
  const ODD = { length: "cut at max_tokens", refusal: "refused by the model" };
  const EVERYTHING = { query: "", status: "all", kind: "all", stage: "all" };

  let model = null;
  let filters = EVERYTHING;
  let order = { by: "index", isDown: false };
  let rows = [];
  let page = 0;
  let shown = null;
  let searched = null;
  let counts = null;

  const host = () => document.getElementById("results");

  const count = (value, write = exact) => (value === null ? NOTHING : write(value));

  /** Columns: `value` is what a column is sorted by. Those of scores, which depend on the run, are in `columns`. */
  const COLUMNS = [
    { id: "index", name: "Agent", class: "name", value: (agent) => model.agents.index[agent], cell: agentCell },
    {
      id: "key",
      name: "Key",
      class: "key-of-row",
      has: () => model.results.hasKeys,
      value: (agent) => model.results.key[agent],
      cell: (agent) => model.results.key[agent] || NOTHING,
    },
    { id: "status", name: "Status", class: "status", value: (agent) => runModel.status(model, agent), cell: statusCell },
    {
      id: "stage",
      name: "Stage",
      has: () => model.stages.length > 1,
      value: (agent) => model.agents.stage[agent],
      cell: (agent) => text(model.stages[model.agents.stage[agent]]?.name),
    },
    {
      id: "input",
      name: "Input",
      class: "broad",
      has: () => model.results.hasInputs,
      value: (agent) => model.results.input[agent].toLowerCase(),
      cell: (agent) => el("p", { class: "clip" }, model.results.input[agent] || NOTHING),
    },
    { id: "error", name: "Answer or error", class: "broad", value: (agent) => outcome(agent), cell: outcomeCell },
    {
      id: "finish",
      name: "Finish",
      about: "Finish reason of the last turn",
      value: (agent) => model.results.finish[agent] || "~",
      cell: finishCell,
    },
    number("turns", "Turns", (value) => count(value)),
    number("tokensIn", "Tokens in", (value) => count(value)),
    number("tokensOut", "Tokens out", (value) => count(value)),
    { ...number("cost", "Cost", (value) => count(value, format.dollars)), has: () => model.results.isPriced },
    { ...number("seconds", "Time", (value) => count(value, seconds)), about: "From the first turn to the result" },
  ];

  function number(id, name, write) {
    const value = (agent) => model.results[id][agent];
    return { id, name, class: "number", value, cell: (agent) => write(value(agent)) };
  }

  function agentCell(agent) {
    const { stage, index, sample } = model.agents;
    return agentButton(stage[agent], index[agent], sample[agent], runModel.nameOf(model.agents, agent));
  }

  function statusCell(agent) {
    const status = runModel.status(model, agent);
    return el("span", { class: `key ${TONES[status] ?? "waiting"}` }, status);
  }

  function finishCell(agent) {
    const reason = model.results.finish[agent];
    return ODD[reason] ? el("span", { class: "odd", title: ODD[reason] }, reason) : reason || NOTHING;
  }

  /** The answer, or the kind and message of the error. */
  function outcome(agent) {
    const error = model.results.error[agent];
    return error ? `${error.kind} ${error.message}`.toLowerCase() : `~${model.results.answer[agent].toLowerCase()}`;
  }

  function outcomeCell(agent) {
    const error = model.results.error[agent];
    const words = error ? [el("code", { class: "odd" }, error.kind), dom.breakable(` ${error.message}`)] : format.spaced(model.results.answer[agent]);
    return el("p", { class: error ? "clip long" : "clip" }, words || NOTHING);
  }

  function set(next) {
    model = next;
    searched = null;
    counts = totals();
    if (shown) shown = { ...shown, agent: timeline.agentOf(shown.stage, shown.index, shown.sample) };
    select();
    draw();
  }

  /** Agents that pass the filters, in order. */
  function select() {
    const passes = predicate();
    const found = [];
    for (let agent = 0; agent < model.agents.count; agent++) if (passes(agent)) found.push(agent);
    const column = columns().find((each) => each.id === order.by) ?? COLUMNS[0];
    const values = new Array(model.agents.count);
    for (const agent of found) values[agent] = column.value(agent);
    const way = order.isDown ? -1 : 1;
    const { index, stage } = model.agents;
    rows = found.sort(
      (a, b) => compared(values[a], values[b], way) || stage[a] - stage[b] || index[a] - index[b] || a - b,
    );
  }

  /** What is unknown comes last in both directions. */
  function compared(one, other, way) {
    if (one === other) return 0;
    if (one === null || other === null) return one === null ? 1 : -1;
    return one < other ? -way : way;
  }

  function predicate() {
    const { agents, results: table } = model;
    const query = filters.query.trim().toLowerCase();
    const stage = filters.stage === "all" ? -1 : Number(filters.stage);
    if (query) searched ??= Array.from({ length: agents.count }, (_, agent) => searchedText(agent));
    return (agent) =>
      (stage < 0 || agents.stage[agent] === stage) &&
      (filters.status === "all" || hasStatus(agent, filters.status)) &&
      (filters.kind === "all" || table.error[agent]?.kind === filters.kind) &&
      (!query || searched[agent].includes(query));
  }

  function hasStatus(agent, status) {
    return status === "truncated" ? runModel.isTruncated(model, agent) : runModel.status(model, agent) === status;
  }

  function searchedText(agent) {
    const { agents, results: table } = model;
    const error = table.error[agent];
    const parts = [agents.index[agent], table.key[agent], table.input[agent], table.answer[agent], error?.kind, error?.message];
    return parts.join("\n").toLowerCase();
  }

  function draw() {
    if (!model?.agents.count) return section("results", "Results");
    page = Math.max(0, Math.min(page, Math.ceil(rows.length / perPage()) - 1));
    const note =
      rows.length === model.agents.count ? null : `${format.plural(rows.length, "agent")} of ${exact(model.agents.count)}`;
    return section("results", "Results", note, bar(), rows.length ? table() : empty(), rows.length > perPage() && pager());
  }

  /** Agents by status, and by kind of error. */
  function totals() {
    const statuses = { answered: 0, truncated: 0, failed: 0, running: 0, interrupted: 0 };
    const kinds = new Map();
    for (let agent = 0; agent < model.agents.count; agent++) {
      statuses[runModel.status(model, agent)] += 1;
      if (runModel.isTruncated(model, agent)) statuses.truncated += 1;
      const kind = model.results.error[agent]?.kind;
      if (kind) kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
    }
    return { statuses, kinds };
  }

  function bar() {
    const { kinds } = counts;
    const statuses = Object.entries(counts.statuses).filter(([status, many]) => many > 0 || filters.status === status);
    const search = el("input", {
      type: "search",
      name: "query",
      placeholder: model.results.hasKeys ? "key, input, answer, error or index" : "input, answer, error or index",
      autocomplete: "off",
      spellcheck: "false",
    });
    return el(
      "div",
      { class: "bar", role: "search", "aria-label": "Results" },
      el("label", { class: "search" }, el("span", null, "Search"), search),
      choice("Status", "status", [["all", "all"], ...statuses.map(counted)]),
      (kinds.size > 0 || filters.kind !== "all") &&
        choice("Error", "kind", [["all", "all"], ...[...kinds].sort((a, b) => b[1] - a[1]).map(counted)]),
      model.stages.length > 1 &&
        choice("Stage", "stage", [
          ["all", "all"],
          ...model.stages.map((stage, at) => [String(at), text(stage.name) || `stage ${at + 1}`]),
        ]),
      el("div", { class: "only-phones" }, choice("Order", "by", columns().map(({ id, name }) => [id, name]))),
    );
  }

  const counted = ([name, many]) => [name, `${name} (${exact(many)})`];

  function choice(label, name, options) {
    const list = options.map(([value, shownAs]) => el("option", { value }, shownAs));
    return el("label", null, el("span", null, label), el("select", { "data-filter": name }, list));
  }

  /** The columns of this run: scores stand behind the answers. */
  function columns() {
    const used = COLUMNS.filter((column) => !column.has || column.has());
    const behind = used.findIndex((column) => column.id === "error") + 1;
    return [...used.slice(0, behind), ...model.results.scores.map(scoreColumn), ...used.slice(behind)];
  }

  function scoreColumn({ name, values }) {
    const value = (agent) => values[agent];
    const about = `Score of the answer by ${name}`;
    return { id: `score.${name}`, name, about, class: "number", value, cell: (agent) => count(value(agent), format.score) };
  }

  function table() {
    const used = columns();
    const first = page * perPage();
    const body = rows.slice(first, first + perPage()).map((agent) =>
      el(
        "tr",
        {
          "data-key": `${model.agents.stage[agent]} ${model.agents.index[agent]} ${model.agents.sample[agent]}`,
          "data-row": agent,
          class: shown?.agent === agent ? "selected" : null,
        },
        used.map((column) =>
          el("td", { class: column.class, "data-name": column.name }, column.cell(agent)),
        ),
      ),
    );
    return el(
      "div",
      { class: "table cards-on-phones" },
      el(
        "table",
        { "aria-label": "Results", "aria-rowcount": rows.length },
        el("thead", null, el("tr", null, used.map(heading))),
        el("tbody", null, body),
      ),
    );
  }

  function heading(column) {
    const isUsed = order.by === column.id;
    return el(
      "th",
      {
        scope: "col",
        class: column.class,
        title: column.about,
        "aria-sort": isUsed ? (order.isDown ? "descending" : "ascending") : null,
      },
      el("button", { type: "button", "data-sort": column.id }, column.name),
    );
  }

  function empty() {
    return el("p", { class: "card" }, "No agents match the filter.");
  }

  function pager() {
    const first = page * perPage();
    const last = Math.min(rows.length, first + perPage());
    return el(
      "div",
      { class: "pager" },
      el(
        "div",
        { class: "buttons", role: "group", "aria-label": "Pages of the results" },
        turn("results-first", "First", page === 0),
        turn("results-previous", "Previous", page === 0),
        turn("results-next", "Next", last === rows.length),
        turn("results-last", "Last", last === rows.length),
      ),
      el("p", { class: "note", role: "status" }, `${exact(first + 1)} to ${exact(last)} of ${exact(rows.length)}`),
    );
  }

  function turn(what, name, isEnd) {
    return el("button", { type: "button", "data-do": what, disabled: isEnd, "aria-label": `${name} page` }, name);
  }

  function goTo(number) {
    page = number;
    draw();
  }

  /** Shows only these agents, from the first page on. */
  function show(changes) {
    filters = { ...filters, ...changes };
    page = 0;
    select();
    draw();
    for (const input of host().querySelectorAll("[data-filter]"))
      if (input.dataset.filter in filters) input.value = filters[input.dataset.filter];
  }

  /** Marks the row of an agent, and turns to its page. */
  function mark(agent) {
    const { stage, index, sample } = model.agents;
    shown = agent === null ? null : { agent, stage: stage[agent], index: index[agent], sample: sample[agent] };
    const row = agent === null ? -1 : rows.indexOf(agent);
    if (row >= 0) page = Math.floor(row / perPage());
    draw();
  }

  function sort(by, isDown) {
    order = { by, isDown };
    select();
    goTo(0);
    const chooser = host().querySelector('[data-filter="by"]');
    if (chooser) chooser.value = by;
  }

  /** Numbers begin with the largest, texts and indices with the first. */
  const startsDown = (by) => columns().find((column) => column.id === by).class === "number";

  function attach() {
    host().addEventListener("input", ({ target }) => target.name === "query" && show({ query: target.value }));
    host().addEventListener("change", ({ target }) => {
      const name = target.dataset.filter;
      if (name === "by") sort(target.value, startsDown(target.value));
      else if (name) show({ [name]: target.value });
    });
    host().addEventListener("click", ({ target }) => {
      const by = target.closest("[data-sort]")?.dataset.sort;
      if (by) return sort(by, order.by === by ? !order.isDown : startsDown(by));
      const row = target.closest("tr[data-row]");
      const isReading = String(window.getSelection()) !== "";
      if (row && !isReading && !target.closest("button")) timeline.open(Number(row.dataset.row));
      return null;
    });
  }

  function showFailures(stage, kind) {
    show({ ...EVERYTHING, kind, stage: model.stages.length > 1 ? stage : "all" });
    host().querySelector('[name="query"]').value = "";
    host().scrollIntoView();
  }

  return {
    set,
    attach,
    mark,
    showFailures,
    first: () => goTo(0),
    previous: () => goTo(page - 1),
    next: () => goTo(page + 1),
    last: () => goTo(Infinity),
    get rows() {
      return rows;
    },
  };
})();
