"use strict";
/* What a pointer, a wheel and keys do over anything that has the time axis: read, choose a part, move, zoom. */
const gestures = (() => {
  const { el, morph } = dom;
  const CLICK = 5;
  const pointers = new Map();
  let began = null;
  let told = null;

  const tip = () => document.getElementById("tip");
  const plotOf = (event) => event.target.closest?.(".plot, #rows");
  const offset = (plot, event) => event.clientX - plot.getBoundingClientRect().left;

  /** Where what a plot shows lies in the window. */
  function where(plot) {
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

  /** Shows what is known of the time at this place. */
  function read(plot, x, clientX, clientY) {
    const place = plots.scale(plot.offsetWidth);
    const within = Math.min(Math.max(x, place.left), place.right);
    const time = place.time(within);
    point(within);
    const lines = plot.id === "rows" ? timeline.saidAt(time, clientY, x) : chartLines(time, place);
    if (!lines) return hide();
    show(lines, clientX, clientY);
    told = { plot, at: where(plot) };
    return lines;
  }

  function chartLines(time, place) {
    const values = charts.valuesAt(time);
    const rows = values.map((one, at) => [
      one.chart !== values[at - 1]?.chart && el("div", { class: "group" }, one.chart),
      el("div", { class: "value" }, el("span", { class: `key ${one.tone}` }, one.name), el("b", null, one.value)),
    ]);
    const near = charts.marksAt(time, (4 / place.plot) * (span.to - span.from));
    return [
      el("div", { class: "when" }, `at ${words.moment(time, span.to - span.from)}`),
      rows,
      near.map((said) => el("div", { class: "mark-said" }, said)),
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
    told = null;
    point(null);
  }

  /** A scroll is heard of only with the next frame: it hides what it moved, not what was read after it. */
  function scrolled() {
    if (told && where(told.plot) !== told.at) hide();
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
      began = { plot, x: event.clientX, y: event.clientY, moved: false, isTouch: event.pointerType === "touch" };
    else if (began) began.moved = true;
    plot.setPointerCapture?.(event.pointerId);
  }

  function drag(event) {
    const last = pointers.get(event.pointerId);
    const now = { x: event.clientX, y: event.clientY };
    if (Math.abs(now.x - began.x) > CLICK) began.moved = true;
    const place = plots.scale(began.plot.offsetWidth);
    if (pointers.size === 2) pinch(event.pointerId, last, now, place);
    else if (began.moved && began.isTouch) span.pan(((last.x - now.x) / place.plot) * (span.to - span.from));
    else if (began.moved) select(now.x, place);
    pointers.set(event.pointerId, now);
  }

  function pinch(moved, last, now, place) {
    const [other] = [...pointers].filter(([id]) => id !== moved).map(([, where]) => where);
    const edge = began.plot.getBoundingClientRect().left;
    const before = Math.max(20, Math.abs(last.x - other.x));
    const after = Math.max(20, Math.abs(now.x - other.x));
    span.zoom(before / after, place.time((now.x + other.x) / 2 - edge));
  }

  function select(clientX, place) {
    const edge = began.plot.getBoundingClientRect().left;
    const [first, last] = [began.x - edge, clientX - edge]
      .sort((a, b) => a - b)
      .map((x) => Math.min(Math.max(x, place.left), place.right));
    began.chosen = [place.time(first), place.time(last)];
    for (const box of document.querySelectorAll(".selection")) {
      box.hidden = false;
      box.style.left = `${first}px`;
      box.style.width = `${last - first}px`;
    }
    hide();
  }

  function up(event) {
    if (!pointers.delete(event.pointerId) || pointers.size > 0) return;
    const { plot, moved, chosen, isTouch } = began;
    finish();
    if (chosen && chosen[1] > chosen[0]) span.show(...chosen);
    else if (!moved && plot.id === "rows") timeline.chooseAt(event.clientY);
    else if (!moved && isTouch) read(plot, offset(plot, event), event.clientX, event.clientY);
  }

  function cancel(event) {
    pointers.delete(event.pointerId);
    if (began) finish();
  }

  function finish() {
    began = null;
    for (const box of document.querySelectorAll(".selection")) box.hidden = true;
  }

  /** A wheel scrolls, as everywhere; with Ctrl or Cmd (and so by pinching a touchpad) it zooms, with Shift it moves. */
  function wheel(event) {
    const plot = plotOf(event);
    if (!plot) return;
    const place = plots.scale(plot.offsetWidth);
    const sideways = event.shiftKey
      ? event.deltaY || event.deltaX
      : Math.abs(event.deltaX) > Math.abs(event.deltaY)
        ? event.deltaX
        : 0;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      span.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.008), place.time(offset(plot, event)));
    } else if (sideways && !span.isWhole) {
      event.preventDefault();
      span.pan((sideways / place.plot) * (span.to - span.from));
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

  /** The values of the next moment, shown and said. */
  function step(plot, direction) {
    const place = plots.scale(plot.offsetWidth);
    const hair = plot.querySelector(".crosshair");
    const from = hair.hidden
      ? direction > 0
        ? place.left
        : place.right
      : parseFloat(hair.style.left) + (direction * place.plot) / 40;
    const box = plot.getBoundingClientRect();
    const x = Math.min(Math.max(from, place.left), place.right);
    read(plot, x, box.left + x, box.top + box.height / 2);
    timeline.say(tip().innerText.replace(/\s*\n\s*/g, ", "));
  }

  return { attach, hide, scrolled };
})();
