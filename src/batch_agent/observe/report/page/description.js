"use strict";
/* What all agents of a run have in common: task, system prompt, tools, schema and options. */
const description = (() => {
  const { el, section, details, block } = dom;
  const { list, record, text } = runModel;

  const PLAIN = { isTitled: false };
  const SENT = { ...PLAIN, note: "As the model receives it" };
  const asJson = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

  function draw({ stages }) {
    const described = stages
      .map((stage) => [text(stage.name), record(stage.description)])
      .filter(([, about]) => Object.keys(about).length > 0);
    section("description", "Task and options", null, described.length > 0 && described.map(card));
  }

  function card([name, about]) {
    const options = Object.entries(record(about.options));
    return el(
      "article",
      { class: "card", "data-key": `description ${name}` },
      block(name || "Task", text(about.task) || "unknown"),
      shared(`description ${name}`, about),
      details(
        `description ${name} options`,
        `Options (${format.exact(options.length)})`,
        options.length > 0
          ? el(
              "dl",
              { class: "options" },
              options.map(([option, value]) => el("div", null, el("dt", null, option), el("dd", null, asJson(value)))),
            )
          : el("p", { class: "note" }, "All options have their defaults."),
        options.length > 0 && el("p", { class: "note" }, "All other options have their defaults."),
      ),
    );
  }

  /** System prompt, tools and schema, as disclosures. */
  function shared(key, about) {
    const tools = list(about.tools).map(record);
    return [
      text(about.system_prompt) &&
        details(`${key} system`, "System prompt", block("System prompt", text(about.system_prompt), SENT)),
      tools.length > 0 &&
        details(
          `${key} tools`,
          `Tools (${format.exact(tools.length)})`,
          tools.map((tool) =>
            block(text(tool.name) || "(unnamed)", asJson(tool.parameters ?? {}), { note: text(tool.description) }),
          ),
        ),
      about.output_schema &&
        details(`${key} schema`, "Schema of the answers", block("Schema of the answers", asJson(about.output_schema), PLAIN)),
    ];
  }

  return { draw, shared };
})();
