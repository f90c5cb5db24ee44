"use strict";
/* Pointer, wheel and keyboard on everything with the time axis: tooltips, range selection, pan and zoom. */
const gestures = (() => {
  const { el, morph } = dom;
  const CLICK = 5;
  const pointers = new Map();
  let gesture = null;
  let shownAt = null;

  const tip = () => document.getElementById("tip");
  const plotOf = (event) => event.target.closest?.(".plot, #rows");
  const offset = (plot, event) => event.clientX - plot.getBoundingClientRect().left;

  /** Position of a plot's contents in the window, as text to compare. */
  function windowPosition(plot) {
    const { left, top } = plot.getBoundingClientRect();
    return `${left} ${top - plot.scrollTop}`;
  }

  function attach() {
    document.addEventListener("pointermove", move);
    document.addEventListener("pointerdown", down);
    document.addEventListener("pointerup", up);
    document.addEventListener("pointercancel", cancel);
    document.addEventListener("wheel", wheel, { passive: false });
    document.addEventListener("keydown", key);
    document.addEventListener("dblclick", (event) => plotOf(event) && span.reset());
    document.addEventListener("scroll", scrolled, { passive: true });
  }

  function move(event) {
    if (pointers.has(event.pointerId)) return drag(event);
    const plot = plotOf(event);
    if (!plot || event.buttons) return hide();
    return read(plot, offset(plot, event), event.clientX, event.clientY);
  }

  /** Shows the tooltip for the time at this x position. */
  function read(plot, x, clientX, clientY) {
    const xScale = plots.scale(plot.offsetWidth);
    const within = Math.min(Math.max(x, xScale.left), xScale.right);
    const time = xScale.time(within);
    point(within);
    const lines = plot.id === "rows" ? timeline.tooltipAt(time, clientY, x) : chartLines(time, xScale);
    if (!lines) return hide();
    show(lines, clientX, clientY);
    shownAt = { plot, at: windowPosition(plot) };
    return lines;
  }

  function chartLines(time, xScale) {
    const values = charts.valuesAt(time);
    const rows = values.map((one, at) => [
      one.chart !== values[at - 1]?.chart && el("div", { class: "group" }, one.chart),
      el("div", { class: "value" }, el("span", { class: `key ${one.tone}` }, one.name), el("b", null, one.value)),
    ]);
    const near = charts.marksAt(time, (4 / xScale.plot) * (span.to - span.from));
    return [
      el("div", { class: "when" }, `at ${format.moment(time, span.to - span.from)}`),
      rows,
      near.map((label) => el("div", { class: "mark-text" }, label)),
    ];
  }

  function show(lines, clientX, clientY) {
    const box = tip();
    morph(box, lines);
    box.hidden = false;
    const [width, height] = [box.offsetWidth, box.offsetHeight];
    const x = clientX + 16 + width > window.innerWidth ? clientX - 16 - width : clientX + 16;
    const y = Math.min(Math.max(8, clientY - height / 3), window.innerHeight - height - 8);
    box.style.transform = `translate(${Math.max(8, Math.min(x, window.innerWidth - width - 8))}px, ${y}px)`;
  }

  function point(x) {
    for (const hair of document.querySelectorAll(".crosshair")) {
      hair.hidden = x === null;
      if (x !== null) hair.style.left = `${x}px`;
    }
  }

  function hide() {
    if (tip().hidden) return;
    tip().hidden = true;
    shownAt = null;
    point(null);
  }

  /** Scroll events arrive with the next frame: they hide a tooltip that was moved, not one that was opened since. */
  function scrolled() {
    if (shownAt && windowPosition(shownAt.plot) !== shownAt.at) hide();
  }

  function down(event) {
    const plot = plotOf(event);
    if (
      !plot ||
      event.button !== 0 ||
      (plot.id === "rows" && event.clientX > plot.getBoundingClientRect().left + plot.clientWidth)
    )
      return;
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (pointers.size === 1)
      gesture = { plot, x: event.clientX, y: event.clientY, moved: false, isTouch: event.pointerType === "touch" };
    else if (gesture) gesture.moved = true;
    plot.setPointerCapture?.(event.pointerId);
  }

  function drag(event) {
    const last = pointers.get(event.pointerId);
    const now = { x: event.clientX, y: event.clientY };
    if (Math.abs(now.x - gesture.x) > CLICK) gesture.moved = true;
    const xScale = plots.scale(gesture.plot.offsetWidth);
    if (pointers.size === 2) pinch(event.pointerId, last, now, xScale);
    else if (gesture.moved && gesture.isTouch) span.pan(((last.x - now.x) / xScale.plot) * (span.to - span.from));
    else if (gesture.moved) select(now.x, xScale);
    pointers.set(event.pointerId, now);
  }

  function pinch(moved, last, now, xScale) {
    const [other] = [...pointers].filter(([id]) => id !== moved).map(([, where]) => where);
    const edge = gesture.plot.getBoundingClientRect().left;
    const before = Math.max(20, Math.abs(last.x - other.x));
    const after = Math.max(20, Math.abs(now.x - other.x));
    span.zoom(before / after, xScale.time((now.x + other.x) / 2 - edge));
  }

  function select(clientX, xScale) {
    const edge = gesture.plot.getBoundingClientRect().left;
    const [first, last] = [gesture.x - edge, clientX - edge]
      .sort((a, b) => a - b)
      .map((x) => Math.min(Math.max(x, xScale.left), xScale.right));
    gesture.selected = [xScale.time(first), xScale.time(last)];
    for (const box of document.querySelectorAll(".selection")) {
      box.hidden = false;
      box.style.left = `${first}px`;
      box.style.width = `${last - first}px`;
    }
    hide();
  }

  function up(event) {
    if (!pointers.delete(event.pointerId) || pointers.size > 0) return;
    const { plot, moved, selected, isTouch } = gesture;
    finish();
    if (selected && selected[1] > selected[0]) span.show(...selected);
    else if (!moved && plot.id === "rows") timeline.selectAt(event.clientY);
    else if (!moved && isTouch) read(plot, offset(plot, event), event.clientX, event.clientY);
  }

  function cancel(event) {
    pointers.delete(event.pointerId);
    if (gesture) finish();
  }

  function finish() {
    gesture = null;
    for (const box of document.querySelectorAll(".selection")) box.hidden = true;
  }

  /** The wheel scrolls the page; with Ctrl or Cmd (or a pinch on a touchpad) it zooms, with Shift it pans. */
  function wheel(event) {
    const plot = plotOf(event);
    if (!plot) return;
    const xScale = plots.scale(plot.offsetWidth);
    const sideways = event.shiftKey
      ? event.deltaY || event.deltaX
      : Math.abs(event.deltaX) > Math.abs(event.deltaY)
        ? event.deltaX
        : 0;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      span.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.008), xScale.time(offset(plot, event)));
    } else if (sideways && !span.isWhole) {
      event.preventDefault();
      span.pan((sideways / xScale.plot) * (span.to - span.from));
    }
  }

  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const plot = event.target.closest?.(".plot, #rows");
    if (event.key === "Escape") hide();
    if (!plot) return;
    const width = span.to - span.from;
    const acts = {
      "+": () => span.zoom(0.5),
      "=": () => span.zoom(0.5),
      "-": () => span.zoom(2),
      0: () => span.reset(),
    };
    if (plot.id === "rows")
      Object.assign(acts, { ArrowLeft: () => span.pan(-width / 8), ArrowRight: () => span.pan(width / 8) });
    else Object.assign(acts, { ArrowLeft: () => step(plot, -1), ArrowRight: () => step(plot, 1) });
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  /** Shows and announces the values of the next step in time. */
  function step(plot, direction) {
    const xScale = plots.scale(plot.offsetWidth);
    const hair = plot.querySelector(".crosshair");
    const from = hair.hidden
      ? direction > 0
        ? xScale.left
        : xScale.right
      : parseFloat(hair.style.left) + (direction * xScale.plot) / 40;
    const box = plot.getBoundingClientRect();
    const x = Math.min(Math.max(from, xScale.left), xScale.right);
    read(plot, x, box.left + x, box.top + box.height / 2);
    timeline.announce(tip().innerText.replace(/\s*\n\s*/g, ", "));
  }

  return { attach, hide, scrolled };
})();
