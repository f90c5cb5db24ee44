"use strict";
/* Puts the page together: from the run inside the file, or, where there is none, from the server. */
const main = (() => {
  const { el, morph } = dom;
  const FORMAT = 1;
  let isDrawing = false;

  function show(raw) {
    const model = reading.run(raw);
    summary.draw(model);
    tables.draw(model);
    distributions.draw(model);
    scheduling.draw(model);
    charts.set(model);
    strip.set(model);
    timeline.set(model);
    span.grow(model.seconds);
    panel.set(model);
    contents(model);
    foot(model);
    draw();
  }

  function draw() {
    isDrawing = false;
    strip.draw();
    charts.draw();
    timeline.draw();
  }

  /** All that happens until the next frame is drawn at once. */
  function drawSoon() {
    if (isDrawing) return;
    isDrawing = true;
    requestAnimationFrame(draw);
  }

  function contents({ totals, isRunning }) {
    const sections = [...document.querySelectorAll("main section:not([hidden])")].filter((section) =>
      section.querySelector("h2"),
    );
    const links = sections.map((section) =>
      el("li", null, el("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)),
    );
    const done = totals.total ? `${words.share(totals.done, totals.total)} done` : `${words.exact(totals.done)} done`;
    morph(
      document.getElementById("contents"),
      el("ul", { class: "wide" }, links, isRunning && el("li", { class: "done" }, done)),
    );
  }

  function foot(model) {
    const written = [
      `BatchAgent ${reading.text(model.version)}`.trim(),
      words.isNumber(model.now) && `as of ${words.when(model.now)}`,
      model.format !== undefined &&
        model.format !== FORMAT &&
        `written in a format (${reading.text(model.format)}) that this page does not know in full`,
    ];
    morph(document.getElementById("foot"), written.filter(Boolean).join(" · "));
  }

  const ACTS = {
    "zoom-in": () => span.zoom(0.5),
    "zoom-out": () => span.zoom(2),
    "zoom-whole": () => span.reset(),
    "rows-taller": () => timeline.taller(),
    "rows-lower": () => timeline.lower(),
    "rows-fit": () => timeline.fit(),
    "close-panel": () => panel.close(),
  };

  function click(event) {
    const button = event.target.closest?.("button");
    if (!button) return;
    if (button.dataset.do) ACTS[button.dataset.do]?.();
    if (button.dataset.agent === undefined) return;
    const agent = timeline.agentOf(Number(button.dataset.stage), Number(button.dataset.agent));
    if (agent !== null) timeline.open(agent);
  }

  function repaint() {
    timeline.recolor();
    drawSoon();
  }

  /** On paper: in light colours, with everything open that can be opened. */
  function printing(isOn) {
    document.documentElement.classList.toggle("paper", isOn);
    for (const details of document.querySelectorAll("details")) {
      if (isOn) details.dataset.was = details.open;
      details.open = isOn || details.dataset.was === "true";
    }
    timeline.recolor();
    draw();
  }

  function attach() {
    document.addEventListener("click", click);
    document.addEventListener("keydown", (event) => event.key === "Escape" && panel.isOpen && panel.close());
    span.listen(drawSoon);
    strip.attach();
    gestures.attach();
    timeline.attach();
    new ResizeObserver(drawSoon).observe(document.querySelector("main"));
    window.addEventListener("resize", drawSoon);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    window.addEventListener("beforeprint", () => printing(true));
    window.addEventListener("afterprint", () => printing(false));
  }

  function start() {
    attach();
    const inside = document.getElementById("run").textContent.trim();
    if (!inside) return live.start(show);
    try {
      return show(JSON.parse(inside));
    } catch (error) {
      return live.notice(`This report cannot be read: ${error.message}`);
    }
  }

  return { start, show, drawSoon };
})();

main.start();
