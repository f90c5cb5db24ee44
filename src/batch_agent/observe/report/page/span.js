"use strict";
/* Visible time range, shared by all charts and the timeline. */
const span = (() => {
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const listeners = [];
  let whole = 1;
  let from = 0;
  let to = 1;
  let isWhole = true;

  const narrowest = () => Math.min(whole, Math.max(0.05, whole / 50000));

  /** Sets the length of the run. A selected range stays selected. */
  function grow(seconds) {
    whole = seconds > 0 ? seconds : 1;
    if (isWhole || to > whole) show(isWhole ? 0 : from, isWhole ? whole : to);
  }

  function show(first, last) {
    const width = Math.min(whole, Math.max(narrowest(), last - first));
    const middle = (first + last) / 2;
    from = Math.min(Math.max(0, last - first < width ? middle - width / 2 : first), whole - width);
    to = from + width;
    isWhole = width >= whole * 0.9999;
    for (const listener of listeners) listener();
  }

  function zoom(factor, around = (from + to) / 2) {
    show(around - (around - from) * factor, around + (to - around) * factor);
  }

  function pan(seconds) {
    const width = to - from;
    const first = Math.min(Math.max(0, from + seconds), whole - width);
    show(first, first + width);
  }

  /** Round times inside the visible range, at most one per `room` pixels. */
  function ticks(width, room) {
    const rough = ((to - from) * room) / Math.max(width, 1);
    const step = stepOf(rough);
    const found = [];
    for (let at = Math.ceil(from / step - 1e-9); at * step <= to + 1e-9; at++) found.push(at * step);
    return { step, found };
  }

  function stepOf(rough) {
    if (rough > 86400) return 86400 * Math.ceil(rough / 86400);
    if (rough > 0.5) return STEPS.find((step) => step >= rough);
    const power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((step) => step * power >= rough * 0.999);
  }

  return {
    grow,
    show,
    zoom,
    pan,
    ticks,
    reset: () => show(0, whole),
    listen: (listener) => listeners.push(listener),
    get from() {
      return from;
    },
    get to() {
      return to;
    },
    get whole() {
      return whole;
    },
    get isWhole() {
      return isWhole;
    },
  };
})();
