// The verdict in words, first, and the evidence beside it.

const verdictPart = {
  id: "verdict",
  title: "Verdict",
  has: () => true,
  data: (run) => [
    run.verdict,
    run.facts,
    run.notes,
    run.state,
    run.charts,
    run.audit?.basis,
    glanceMetrics(run),
  ],
  build(run) {
    const { word, tone, text, certainty, next, evidence, prompts } = run.verdict;
    return el(
      "section",
      { class: "part stack", id: "verdict", "aria-labelledby": "verdict-title" },
      el(
        "div",
        { class: `card verdict tone-${known(tone)}` },
        el(
          "div",
          {},
          el("h2", { class: "headline", id: "verdict-title" }, icon(tone), el("span", {}, word)),
          el("p", { class: "summary" }, text),
          told("How sure", certainty),
          told("Next", next, " next"),
          run.audit?.basis && el("p", { class: "quiet small", style: "margin-top: .6rem" }, run.audit.basis),
          el(
            "dl",
            { class: "facts" },
            run.facts.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value))),
          ),
          glances(run),
        ),
        evidence.length
          ? el(
              "div",
              {},
              el("h3", {}, "The examination"),
              el(
                "ul",
                { class: "evidence" },
                evidence.map((one) => evidenceLine(run, one)),
              ),
              promptList(run, prompts || []),
            )
          : null,
      ),
      noteList([...(STATES[run.state] ? [STATES[run.state]] : []), ...(run.notes || [])]),
    );
  },
};

// A labelled sentence; what stands between backticks is a command or a setting.
function told(label, text, more = "") {
  if (!text) return null;
  const parts = text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));
  return el("p", { class: `told${more}` }, el("strong", {}, `${label}: `), ...parts);
}

const STATES = {
  empty: "This run has no records yet.",
  unfinished: "This run has not made all its steps: it is still going on, or it was stopped.",
};

function evidenceLine(run, { head, text, metric, tone }) {
  const chart =
    metric &&
    drawable(run).find((one) =>
      [...one.series, ...(one.guides || [])].some((line) => line.metric === metric),
    );
  const link =
    chart &&
    el(
      "a",
      { href: `#chart-${run.id}-${chart.id}` },
      "see the curve",
      el("span", { class: "unseen" }, ` of ${chart.title}`),
    );
  return el(
    "li",
    { class: tone ? `tone-${known(tone)}` : null },
    icon(tone || "unknown"),
    el("span", {}, head && el("strong", {}, head), " ", text, " ", link),
  );
}

// Prompts whose reasoning ignores them; each opens one of its traces.
function promptList(run, prompts) {
  if (!prompts.length) return null;
  return el(
    "div",
    {},
    el("h3", {}, "Prompts whose reasoning ignores them"),
    el(
      "ul",
      { class: "evidence" },
      prompts.map((one) => {
        const words = `${one.label}, step ${one.step}: ${Math.round(100 * one.share)}% of ${plural(one.num_traces, "trace")} grounded`;
        const scores = run.scores.find(({ step, scope }) => step === one.step && scope === one.scope);
        const button =
          scores &&
          el("button", { type: "button", class: "link", onclick: () => openPrompt(scores, one.label) }, words);
        return el("li", {}, icon("bad"), button || el("span", {}, words));
      }),
    ),
  );
}

function openPrompt(scores, label) {
  const show = (block) => {
    const p = block.prompts.findIndex((prompt) => prompt.label === label);
    openCell(block, block.owner_N.indexOf(p), p);
  };
  const fail = (error) => openDrawer(label, el("p", { role: "alert" }, `It could not be loaded: ${error.message}`));
  loadBlock(scores.block).then(show, fail);
}

// The few numbers that the verdict turns on, each with its way over the run.
function glanceMetrics(run) {
  const scope = run.plane?.y_metric.replace(/[^/]*$/, "") ?? "";
  const wanted = [
    ["success", run.metrics["eval/success"] ? "eval/success" : "rollout/success"],
    ["grounded share", `${scope}grounded_share`],
    ["retrieval", `${scope}retrieval_accuracy`],
    [`I(X;Z), ${run.plane?.y_unit}`, run.plane?.y_metric],
    [`H(Z|X), ${run.plane?.x_unit}`, run.plane?.x_metric],
  ];
  return wanted
    .map(([name, metric]) => ({ name, points: metric ? pointsOf(run, metric) : [] }))
    .filter(({ points }) => points.length > 1);
}

function glances(run) {
  const found = glanceMetrics(run);
  if (!found.length) return null;
  return el(
    "dl",
    { class: "facts glances" },
    found.map(({ name, points }) => {
      const [first, last] = [points[0].value, points[points.length - 1].value];
      return el(
        "div",
        {},
        el("dt", {}, name),
        el("dd", {}, sparkline(points), `${num(first)} → ${num(last)}`),
      );
    }),
  );
}

function sparkline(points) {
  const values = points.map((point) => point.value);
  const [low, high] = [Math.min(...values, 0), Math.max(...values)];
  const at = (point, i) => {
    const x = 2 + (96 * i) / (points.length - 1);
    const y = 26 - (24 * (point.value - low)) / (high - low || 1);
    return `${x.toFixed(1)} ${y.toFixed(1)}`;
  };
  const end = at(points[points.length - 1], points.length - 1).split(" ");
  return svg(
    "svg",
    { viewBox: "0 0 102 28", "aria-hidden": "true" },
    svg("path", {
      d: `M${points.map(at).join("L")}`,
      fill: "none",
      stroke: "var(--s1)",
      "stroke-width": 1.8,
      "stroke-linejoin": "round",
    }),
    svg("circle", { cx: end[0], cy: end[1], r: 2.6, fill: "var(--s1)" }),
  );
}
