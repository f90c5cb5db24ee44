"use strict";
/* Agent timeline: rows, row height, selection, keyboard and pointer. */
const timeline = (() => {
  const { morph } = dom;
  const HEIGHTS = [1, 2, 4, 8, 16];
  const TALLEST = 16;

  let filters = timelineFilters.DEFAULTS;
  let ownHeight = null;
  let model = null;
  let rows = new Uint32Array(0);
  let stageRows = [];
  let selected = null;
  let isStale = true;

  const scroller = () => document.getElementById("rows");
  const announce = (message) => {
    document.getElementById("rows-announcement").textContent = message;
  };

  function set(next) {
    const before = model?.agents;
    const kept = selected === null || !before ? null : [before.stage[selected], before.index[selected], before.sample[selected]];
    model = next;
    selected = kept && agentOf(...kept);
    document.getElementById("agents").hidden = model.agents.count === 0;
    isStale = true;
    if (model.agents.count) timelineFilters.draw(model);
  }

  function order() {
    const { agents } = model;
    rows = runModel.ordered(agents, filters.order, timelineFilters.predicate(filters, agents));
    stageRows = [];
    for (let row = 0; row < rows.length; row++) {
      const of = agents.stage[rows[row]];
      if (row === 0 || of !== agents.stage[rows[row - 1]]) stageRows.push([of, row]);
    }
    isStale = false;
    const shown =
      rows.length === agents.count ? "" : `${format.plural(rows.length, "agent")} of ${format.exact(agents.count)}`;
    document.getElementById("agents-note").textContent = rows.length === 0 ? "No agents match the filter." : shown;
  }

  const room = () => Math.max(180, Math.min(560, Math.round(window.innerHeight * 0.6)));
  const fitted = () => Math.min(TALLEST, room() / Math.max(1, rows.length));
  const rowHeight = () => ownHeight ?? (fitted() > 2 ? Math.floor(fitted()) : fitted());

  function draw() {
    if (!model?.agents.count) return;
    if (isStale) order();
    const host = scroller();
    const all = Math.ceil(rows.length * rowHeight());
    host.style.height = `${Math.max(32, Math.min(room(), all))}px`;
    document.getElementById("rows-height").style.height = `${Math.max(32, all)}px`;
    const width = host.clientWidth;
    if (!width) return;
    const began = performance.now();
    paint(width, host);
    timeline.drawnIn = performance.now() - began;
    const view = document.getElementById("rows-view");
    const xScale = plots.scale(view.clientWidth);
    morph(
      document.getElementById("rows-axis"),
      dom.svg("svg", { width: view.clientWidth, height: 20 }, plots.timeAxis(xScale, 0)),
    );
    for (const button of document.querySelectorAll('[data-do="rows-shorter"], [data-do="rows-fit"]'))
      button.disabled = rowHeight() <= fitted();
    document.querySelector('[data-do="rows-taller"]').disabled = rowHeight() >= TALLEST;
    host.setAttribute("aria-label", `Timeline of ${format.plural(rows.length, "agent")}`);
  }

  function paint(width, host) {
    const target = document.getElementById("rows-canvas");
    const height = host.clientHeight;
    target.style.width = `${width}px`;
    target.style.height = `${height}px`;
    const xScale = plots.scale(document.getElementById("rows-view").clientWidth);
    const row = selected === null ? -1 : rows.indexOf(selected);
    canvas.draw(target, {
      agents: model.agents,
      rows,
      rowHeight: rowHeight(),
      top: host.scrollTop,
      width,
      height,
      xScale,
      stages: model.stages,
      stageRows,
      selected,
      selectedRow: row < 0 ? null : row,
      colors: colors(),
    });
  }

  let palette = null;
  function colors() {
    if (palette) return palette;
    const style = getComputedStyle(document.documentElement);
    palette = { rgb: {} };
    for (const name of ["card", "text", "muted", "line", "strong", "waiting", "generating", "tools", "failed"]) {
      palette[name] = style.getPropertyValue(`--${name}`).trim();
      palette.rgb[name] = [1, 3, 5].map((at) => parseInt(palette[name].slice(at, at + 2), 16));
    }
    return palette;
  }

  /** First and last of the rows that share the pixel at this height of the window. */
  function rowsAt(clientY) {
    const host = scroller();
    const y = clientY - host.getBoundingClientRect().top + host.scrollTop;
    const tall = rowHeight();
    const first = tall < canvas.SHARED_BELOW ? Math.ceil(Math.floor(y) / tall) : Math.floor(y / tall);
    const last = tall < canvas.SHARED_BELOW ? Math.ceil((Math.floor(y) + 1) / tall) - 1 : first;
    return y < 0 || first >= rows.length
      ? null
      : [Math.max(0, first), Math.max(first, Math.min(last, rows.length - 1))];
  }

  function tooltipAt(time, clientY) {
    const at = rowsAt(clientY);
    if (!at) return null;
    const [first, last] = at;
    return first === last
      ? tooltips.agent(model, rows[first], time)
      : tooltips.agents(model, rows.subarray(first, last + 1), time);
  }

  /** Opens the agent at this height. Where several share a pixel, makes the rows tall enough to separate them. */
  function selectAt(clientY) {
    const at = rowsAt(clientY);
    gestures.hide();
    if (!at) return;
    if (at[0] === at[1]) return open(rows[at[0]]);
    resize(8);
    reveal(rows[at[0]]);
  }

  function open(agent) {
    reveal(agent);
    panel.open(agent);
  }

  /** Selects the agent and scrolls its row into view. */
  function reveal(agent) {
    const { agents } = model;
    selected = agent;
    if (agents.end[agent] / 100 < span.from || agents.start[agent] / 100 > span.to) {
      const width = span.to - span.from;
      span.show(agents.start[agent] / 100 - width / 4, agents.start[agent] / 100 + (width * 3) / 4);
    }
    draw();
    const row = rows.indexOf(agent);
    const [host, tall] = [scroller(), rowHeight()];
    const y = row * tall;
    if (row >= 0 && (y < host.scrollTop || y + tall > host.scrollTop + host.clientHeight))
      host.scrollTop = y - host.clientHeight / 2;
    main.drawSoon();
  }

  function resize(tall) {
    ownHeight = tall === null || tall <= fitted() ? null : Math.min(TALLEST, tall);
    draw();
  }

  const taller = () => resize(HEIGHTS.find((height) => height > rowHeight()) ?? TALLEST);
  const shorter = () => resize(HEIGHTS.findLast((height) => height < rowHeight()) ?? null);

  function agentOf(stage, index, sample = 0) {
    const { agents } = model;
    for (let agent = 0; agent < agents.count; agent++)
      if (agents.index[agent] === index && agents.stage[agent] === stage && agents.sample[agent] === sample) return agent;
    return null;
  }

  /** Opens the agent with this index. Where several stages or samples have one, each search goes on to the next. */
  function find(wanted) {
    const index = Number(wanted.replace(/[^\d]/g, "") || NaN);
    const { agents } = model;
    const found = [];
    for (let agent = 0; agent < agents.count; agent++) if (agents.index[agent] === index) found.push(agent);
    if (!found.length) return missing(wanted);
    const next = found[(found.indexOf(selected) + 1) % found.length];
    if (rows.indexOf(next) < 0) show({ only: "all", stage: "all" });
    if (rowHeight() < canvas.SHARED_BELOW) resize(8);
    return open(next);
  }

  function missing(wanted) {
    const message = `Agent “${wanted}” was not found.`;
    document.getElementById("agents-note").textContent = message;
    announce(message);
  }

  function show(changes) {
    filters = { ...filters, ...changes };
    timelineFilters.sync(filters);
    isStale = true;
    draw();
  }

  function key(event) {
    const row = selected === null ? -1 : rows.indexOf(selected);
    const page = Math.max(1, Math.floor(scroller().clientHeight / rowHeight()) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
    if (event.key === "Enter" && row >= 0) open(selected);
    else if (event.key in moves && rows.length) {
      event.preventDefault();
      const next = rows[Math.max(0, Math.min(rows.length - 1, row + moves[event.key]))];
      reveal(next);
      announce(tooltips.described(model, next));
    }
  }

  function scrolled() {
    gestures.scrolled();
    main.drawSoon();
  }

  function attach() {
    scroller().addEventListener("scroll", scrolled, { passive: true });
    scroller().addEventListener("keydown", key);
    span.listen(() => {
      isStale = true;
    });
    timelineFilters.attach(show, find);
  }

  return {
    set,
    draw,
    attach,
    tooltipAt,
    selectAt,
    open,
    agentOf,
    taller,
    shorter,
    announce,
    drawnIn: 0,
    fit: () => resize(null),
    recolor: () => {
      palette = null;
    },
    deselect: () => {
      selected = null;
      draw();
    },
    get rows() {
      return rows;
    },
  };
})();
