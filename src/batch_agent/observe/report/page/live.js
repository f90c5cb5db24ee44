"use strict";
/* A served page: fetches the run again whenever the server says that it changed, as often as it can be drawn. */
const live = (() => {
  const LEAST_PAUSE = 200;
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
      notice("Connection lost, trying again …");
      if (source.readyState !== EventSource.CLOSED) return;
      retries += 1;
      setTimeout(listen, retries === 1 ? FIRST_RETRY : RETRY);
    };
  }

  function stale() {
    isStale = true;
    changed();
  }

  /** One request at a time, none for a page that nobody sees, and time to draw between them. */
  async function changed() {
    if (!isStale || isFetching || document.hidden) return;
    isFetching = true;
    isStale = false;
    let pause = LEAST_PAUSE;
    try {
      const answer = await fetch("run.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const began = performance.now();
      show(await answer.json());
      await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
      pause = Math.max(pause, 2 * (performance.now() - began));
      notice(null);
    } catch (error) {
      notice(
        error instanceof TypeError
          ? "Connection lost, trying again …"
          : `The run could not be read (${error.message}), trying again …`,
      );
      isStale = true;
      pause = RETRY;
    }
    setTimeout(() => {
      isFetching = false;
      changed();
    }, pause);
  }

  function notice(said) {
    const host = document.getElementById("notice");
    host.hidden = said === null;
    host.textContent = said ?? "";
  }

  /** What an agent did and said, in the words of the server. */
  async function story(index, stage) {
    try {
      const answer = await fetch(`agent/${index}?stage=${encodeURIComponent(stage)}`, { cache: "no-store" });
      const said = await answer.text();
      return {
        said: answer.ok
          ? said || "Nothing is written of it yet."
          : `Its story could not be read: ${said.slice(0, 300) || answer.status}`,
      };
    } catch {
      return { said: "Its story could not be read: the connection is lost." };
    }
  }

  return {
    start,
    story,
    notice,
    get isLive() {
      return isLive;
    },
  };
})();
