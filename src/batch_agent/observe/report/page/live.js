"use strict";
/* Live page: fetches the run when the server reports a change, at most as often as it can be drawn. */
const live = (() => {
  const MIN_PAUSE = 200;
  const RETRY = 2000;
  const FIRST_RETRY = 500;

  let isLive = false;
  let isStale = false;
  let isFetching = false;
  let show = null;
  let retries = 0;

  function start(showRun) {
    isLive = true;
    show = showRun;
    document.addEventListener("visibilitychange", () => changed());
    listen();
    isStale = true;
    changed();
  }

  function listen() {
    const source = new EventSource("changes");
    source.onopen = () => {
      retries = 0;
      notice(null);
      stale();
    };
    source.onmessage = stale;
    source.onerror = () => {
      notice("Connection lost. Retrying …");
      if (source.readyState !== EventSource.CLOSED) return;
      retries += 1;
      setTimeout(listen, retries === 1 ? FIRST_RETRY : RETRY);
    };
  }

  function stale() {
    isStale = true;
    changed();
  }

  /** One request at a time, none while the page is hidden, and time to draw in between. */
  async function changed() {
    if (!isStale || isFetching || document.hidden) return;
    isFetching = true;
    isStale = false;
    let pause = MIN_PAUSE;
    try {
      const response = await fetch("run.json", { cache: "no-store" });
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      const began = performance.now();
      show(await response.json());
      await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
      pause = Math.max(pause, 2 * (performance.now() - began));
      notice(null);
    } catch (error) {
      notice(
        error instanceof TypeError
          ? "Connection lost. Retrying …"
          : `The run could not be loaded (${error.message}). Retrying …`,
      );
      isStale = true;
      pause = RETRY;
    }
    setTimeout(() => {
      isFetching = false;
      changed();
    }, pause);
  }

  function notice(message) {
    const host = document.getElementById("notice");
    host.hidden = message === null;
    host.textContent = message ?? "";
  }

  /** Trace of one agent, as the server writes it. */
  async function trace(index, stage, sample) {
    const which = sample ? `&sample=${sample}` : "";
    try {
      const response = await fetch(`agent/${index}?stage=${encodeURIComponent(stage)}${which}`, { cache: "no-store" });
      const text = await response.text();
      return response.ok
        ? text || "No trace has been recorded yet."
        : `The trace could not be loaded: ${text.slice(0, 300) || response.status}`;
    } catch {
      return "The trace could not be loaded: connection lost.";
    }
  }

  return {
    start,
    trace,
    notice,
    get isLive() {
      return isLive;
    },
  };
})();
