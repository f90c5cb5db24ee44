"use strict";
/* Entry point: shows the run embedded in the file or, without one, the run of the server. */
const main = (() => {
  const { el, morph } = dom;
  const FORMAT = 1;
  let isDrawing = false;

  function show(raw) {
    const model = runModel.run(raw);
    summary.draw(model);
    description.draw(model);
    evaluation.draw(model);
    tables.draw(model);
    distributions.draw(model);
    scheduling.draw(model);
    charts.set(model);
    strip.set(model);
    timeline.set(model);
    results.set(model);
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

  /** Draws once in the next frame, however often it is called before. */
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
    const done = totals.total ? `${format.share(totals.done, totals.total)} done` : `${format.exact(totals.done)} done`;
    morph(
      document.getElementById("contents"),
      el("ul", { class: "wide" }, links, isRunning && el("li", { class: "done" }, done)),
    );
  }

  function foot(model) {
    const written = [
      `BatchAgent ${runModel.text(model.version)}`.trim(),
      format.isNumber(model.now) && `as of ${format.when(model.now)}`,
      model.format !== undefined &&
        model.format !== FORMAT &&
        `format ${runModel.text(model.format)} is unknown to this page: some data may be missing`,
    ];
    morph(document.getElementById("foot"), written.filter(Boolean).join(" · "));
  }

  const ACTIONS = {
    "zoom-in": () => span.zoom(0.5),
    "zoom-out": () => span.zoom(2),
    "zoom-whole": () => span.reset(),
    "rows-taller": () => timeline.taller(),
    "rows-shorter": () => timeline.shorter(),
    "rows-fit": () => timeline.fit(),
    "close-panel": () => panel.close(),
    "panel-previous": () => panel.step(-1),
    "panel-next": () => panel.step(1),
    "results-first": () => results.first(),
    "results-previous": () => results.previous(),
    "results-next": () => results.next(),
    "results-last": () => results.last(),
    "show-failures": ({ dataset }) => results.showFailures(dataset.stage, dataset.kind),
    copy: (button) => clipboard.copy(button),
  };

  function click(event) {
    const button = event.target.closest?.("button");
    if (!button) return;
    if (button.dataset.do) ACTIONS[button.dataset.do]?.(button);
    if (button.dataset.agent === undefined) return;
    const { stage, agent: index, sample } = button.dataset;
    const agent = timeline.agentOf(Number(stage), Number(index), Number(sample ?? 0));
    if (agent !== null) timeline.open(agent);
  }

  function repaint() {
    timeline.recolor();
    drawSoon();
  }

  /** Print layout: light colours, all disclosures open. */
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
    document.addEventListener("keydown", panel.key);
    span.listen(drawSoon);
    strip.attach();
    gestures.attach();
    timeline.attach();
    results.attach();
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
      return live.notice(`The report could not be parsed: ${error.message}`);
    }
  }

  return { start, show, drawSoon };
})();

main.start();
