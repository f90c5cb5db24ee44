"use strict";
/* DOM elements from data. Text is always inserted as text: the output of a model never becomes markup. */
const dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const opened = new Map();

  /** Attributes: `style` is an object of properties; null, undefined and false are left out. So are such children. */
  function el(tag, attributes, ...children) {
    return filled(document.createElement(tag), attributes, children);
  }

  function svg(tag, attributes, ...children) {
    return filled(document.createElementNS(SVG, tag), attributes, children);
  }

  function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "style")
        for (const [property, setting] of Object.entries(value)) node.style.setProperty(property, setting);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of present(children)) node.append(child);
    return node;
  }

  function present(children) {
    return children
      .flat(Infinity)
      .filter((child) => child !== null && child !== undefined && child !== false && child !== "");
  }

  /** Makes the children of `host` equal to these and changes only what differs: focus, scroll position, selected text
   * and open disclosures stay as they are while the numbers change. */
  function morph(host, ...children) {
    const fresh = present(children).map((child) =>
      typeof child === "object" ? child : document.createTextNode(String(child)),
    );
    let at = host.firstChild;
    for (const next of fresh) {
      if (at === null) host.append(next);
      else if (isSame(at, next)) {
        patch(at, next);
        at = at.nextSibling;
      } else {
        const after = at.nextSibling;
        at.replaceWith(next);
        at = after;
      }
    }
    while (at !== null) {
      const after = at.nextSibling;
      at.remove();
      at = after;
    }
  }

  function isSame(one, other) {
    if (one.nodeType !== other.nodeType || one.nodeName !== other.nodeName) return false;
    return one.nodeType !== Node.ELEMENT_NODE || one.getAttribute("data-key") === other.getAttribute("data-key");
  }

  function patch(old, next) {
    if (next.nodeType === Node.ELEMENT_NODE && next.hasAttribute("data-own")) return; // moved by a pointer, not by data
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== next.data) old.data = next.data;
      return;
    }
    for (const { name } of [...old.attributes])
      if (!next.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    for (const { name, value } of next.attributes) {
      if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
    }
    morph(old, [...next.childNodes]);
  }

  /** A disclosure that stays open or closed across updates. */
  function details(key, summary, ...children) {
    return el("details", { "data-key": key, open: opened.get(key) }, el("summary", null, summary), children);
  }

  document.addEventListener(
    "toggle",
    (event) => {
      const key = event.target.getAttribute?.("data-key");
      if (key) opened.set(key, event.target.open);
    },
    true,
  );

  /** A section with its heading; hidden when it has no contents. */
  function section(id, title, note, ...children) {
    const host = document.getElementById(id);
    const contents = present(children);
    host.hidden = contents.length === 0;
    if (host.hidden) return morph(host);
    const heading = el(
      "div",
      { class: "title" },
      el("h2", { id: `${id}-title` }, title),
      note && el("p", { class: "note" }, note),
    );
    return morph(host, heading, contents);
  }

  /** Columns are {name, cell, class, about}; one that is empty in all rows is left out. On a phone each row becomes a
   * card, unless the shape is "narrow". */
  function table(label, columns, rows, shape = "cards-on-phones") {
    const cells = columns.map((column) => rows.map(column.cell));
    const kept = columns
      .map((column, at) => ({ ...column, cells: cells[at] }))
      .filter((column) => column.cells.some((cell) => cell !== null && cell !== ""));
    const head = kept.map((column) =>
      el("th", { scope: "col", class: column.class, title: column.about }, column.name),
    );
    const body = rows.map((_, row) =>
      el(
        "tr",
        null,
        kept.map((column) => {
          const cell = column.cells[row];
          return el(
            "td",
            { class: column.class, "data-name": column.name },
            cell === null ? el("span", { class: "unknown" }, format.UNKNOWN) : cell,
          );
        }),
      ),
    );
    return el(
      "div",
      { class: `table ${shape}` },
      el("table", { "aria-label": label }, el("thead", null, el("tr", null, head)), el("tbody", null, body)),
    );
  }

  /** A titled text with a button that copies it. In a disclosure with one text, its summary is the title. */
  function block(title, content, { note, tone, isTitled = true } = {}) {
    const head = [
      isTitled ? el("h3", null, title) : note && el("p", { class: "note" }, note),
      el("button", { type: "button", "data-do": "copy", "aria-label": `Copy: ${title}` }, "Copy"),
    ];
    return el(
      "div",
      { class: "block", "data-key": `block ${title}` },
      el("div", { class: "block-head" }, head),
      isTitled && note && el("p", { class: "note" }, note),
      el("pre", { class: tone ? `quote ${tone}` : "quote", "data-text": true, tabindex: "0" }, content),
    );
  }

  /** Button that opens the panel of an agent. */
  function agentButton(stage, index, sample = 0, name = format.exact(index)) {
    const data = { "data-agent": index, "data-stage": stage, "data-sample": sample };
    return el("button", { type: "button", class: "agent", ...data, "aria-label": `Agent ${name}: details` }, name);
  }

  /** A text whose addresses and paths break behind a slash, rather than inside a word. */
  function breakable(content) {
    return content.split(/(?<=[^/:]\/)(?=[^/])/).flatMap((part, at) => (at ? [el("wbr"), part] : [part]));
  }

  /** Stacked bar of [tone, value, name], with `label` for screen readers. */
  function bar(label, total, pieces) {
    const all =
      Math.max(
        total ?? 0,
        pieces.reduce((sum, [, value]) => sum + (value || 0), 0),
      ) || 1;
    const shown = pieces.filter(([, value]) => value > 0);
    const drawn = shown.map(([tone, value, name]) =>
      el("span", {
        class: tone,
        title: Number.isInteger(value) ? `${name}: ${format.exact(value)}` : name,
        style: { width: `${(100 * value) / all}%` },
      }),
    );
    return el("div", { class: "pieces", role: "img", "aria-label": label }, drawn);
  }

  return { el, svg, morph, details, section, table, block, agentButton, breakable, bar, present };
})();
