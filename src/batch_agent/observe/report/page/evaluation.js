"use strict";
/* Evaluation: metrics of the scores with their intervals, and comparisons with other runs or models. */
const evaluation = (() => {
  const { el, section, table, details } = dom;
  const { list, record, text, number } = runModel;
  const { exact } = format;

  const METHODS = {
    wilson: "Wilson's interval of a proportion",
    t: "Student's t interval of a mean",
    "t by input": "Student's t interval of the means of the inputs",
  };

  const digits = (value) => (number(value) === null ? null : value.toFixed(3));
  const signed = (value) => (number(value) === null ? null : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`);
  const range = (low, high, write) => (number(low) === null || number(high) === null ? null : `${write(low)} to ${write(high)}`);

  function draw(model) {
    const found = record(model.evaluation);
    const metrics = list(found.metrics).map(record);
    section("evaluation", "Scores", metrics.length > 0 && "Means over the inputs, with 95 % intervals", [
      metrics.length > 0 && table("Scores", METRICS, metrics),
      list(found.comparisons).map(record).map(comparison),
    ]);
  }

  const METRICS = [
    { name: "Model", class: "model", cell: (metric) => text(metric.model) || null },
    { name: "Score", class: "name", cell: (metric) => text(metric.name) },
    { name: "Mean", class: "number", cell: (metric) => digits(metric.mean) },
    {
      name: "95 % interval",
      class: "number",
      cell: (metric) => el("span", { title: METHODS[metric.method] }, range(metric.low, metric.high, digits) ?? format.UNKNOWN),
    },
    { name: "Inputs", class: "number", cell: (metric) => exact(metric.inputs) },
    { name: "Answers", class: "number", cell: (metric) => exact(metric.scored) },
    { name: "Unscored", class: "number", cell: (metric) => exact(metric.unscored) },
  ];

  const DIFFERENCES = [
    { name: "Score", class: "name", cell: (each) => text(each.name) },
    { name: "Before", class: "number", cell: (each) => digits(each.before) },
    { name: "After", class: "number", cell: (each) => digits(each.after) },
    { name: "Difference", class: "number", cell: (each) => signed(each.difference) },
    { name: "95 % interval", class: "number", cell: (each) => range(each.low, each.high, signed) },
    { name: "p", class: "number", about: "Of a difference at least this large by chance", cell: (each) => digits(each.p_value) },
    { name: "Better", class: "number", cell: (each) => exact(each.won) },
    { name: "Worse", class: "number", cell: (each) => exact(each.lost) },
    { name: "Inputs", class: "number", cell: (each) => exact(each.inputs) },
  ];

  const CHANGED = [
    { name: "Input", class: "name", cell: (row) => exact(row.index) },
    { name: "Key", cell: (row) => text(row.key).slice(0, 40) },
    { name: "Before", class: "broad", cell: (row) => answers(row.before) },
    { name: "After", class: "broad", cell: (row) => answers(row.after) },
    {
      name: "Scores",
      cell: (row) =>
        Object.entries(record(row.scores))
          .filter(([, [one, two]]) => one !== two)
          .map(([name, [one, two]]) => `${name} ${digits(one) ?? "unscored"} → ${digits(two) ?? "unscored"}`)
          .join(", ") || null,
    },
  ];

  const answers = (all) => [...new Set(list(all).map(text))].join(" | ").slice(0, 300) || "no answer";

  function comparison(each) {
    const [before, after] = [record(each.before), record(each.after)];
    const names = `${text(before.name)} → ${text(after.name)}`;
    const scores = list(each.scores).map(record);
    const changed = list(each.changed).map(record);
    const counted = exact(number(each.changed_inputs) ?? changed.length);
    const agreement = digits(each.agreement);
    const limits = range(each.agreement_low, each.agreement_high, digits);
    const cost = (run) => (number(run.cost) === null ? "unknown" : format.dollars(run.cost));
    const took = (run) => (number(run.seconds) === null ? "unknown" : format.seconds(run.seconds));
    return el(
      "article",
      { class: "card", "data-key": `comparison ${names}` },
      el("h3", null, names),
      el(
        "p",
        null,
        `${exact(each.shared)} inputs in both. `,
        agreement !== null && `Agreement ${agreement}${limits ? ` (${limits})` : ""}. `,
        `Cost ${cost(before)} → ${cost(after)}; an agent took ${took(before)} → ${took(after)}; `,
        `failed ${exact(before.failed)} → ${exact(after.failed)}.`,
      ),
      scores.length > 0 && table(`Scores of ${names}`, DIFFERENCES, scores),
      changed.length > 0 && details(`changed ${names}`, `Changed inputs (${counted})`, table("Changed inputs", CHANGED, changed)),
    );
  }

  return { draw };
})();
