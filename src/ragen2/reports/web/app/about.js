// How the run was made: time, settings, versions, what could not be computed, what an audit read.

const timingsPart = {
  id: "timings",
  title: "Timings",
  has: (run) => timingLines(run).length > 0,
  data: (run) => [run.timings, run.steps],
  build(run) {
    const chart = new ChartCard(timingSpec(run));
    const node = part("timings", "Timings", null, chart.node);
    node.refresh = (next) => chart.refresh(timingSpec(next));
    return node;
  },
};

function timingLines(run) {
  return Object.entries(run.timings || {})
    .map(([phase, values]) => ({
      phase,
      values,
      total: values.reduce((sum, value) => sum + (value || 0), 0),
    }))
    .filter((one) => one.total > 0);
}

function timingSpec(run) {
  const lines = timingLines(run);
  const total = lines.reduce((sum, one) => sum + one.total, 0);
  const look = (i) => ({ mark: "area", colour: seriesColour(i), pattern: i % 2 === 1 });
  return {
    id: `chart-${run.id}-timings`,
    title: "Seconds per step, by phase",
    unit: "seconds",
    about: `${seconds(total)} in all`,
    kind: "timings",
    keys: () =>
      lines.map((one, i) => ({
        name: `${one.phase}: ${seconds(one.total)} (${percent(one.total / total)})`,
        ...look(i),
      })),
    describe: lines.map((one) => `${one.phase}: ${seconds(one.total)}.`).join(" "),
    option: () => ({
      aria: striped(),
      grid: plotGrid({ bottom: 26 }),
      yAxis: valueAxis({ scale: false }),
      xAxis: categoryAxis(run.steps.map(String), "step"),
      tooltip: tooltip("axis", (params) =>
        tip(
          `step ${run.steps[params[0].dataIndex]}`,
          lines.map((one, i) => ({
            key: look(i),
            name: one.phase,
            value: seconds(one.values[params[0].dataIndex]),
          })),
        ),
      ),
      series: lines.map((one, i) => ({
        type: "bar",
        name: one.phase,
        stack: "all",
        barCategoryGap: "10%",
        large: false,
        data: one.values.map((value) => value ?? 0),
        color: look(i).colour,
      })),
    }),
    numbers: () => ({
      heads: [["step", "num"], ...lines.map((one) => [one.phase, "num"])],
      rows: run.steps.map((step, i) => [String(step), ...lines.map((one) => num(one.values[i]))]),
    }),
    stops: () =>
      run.steps.map((step, index) => ({
        series: 0,
        index,
        text: `step ${step}: ${lines.map((one) => `${one.phase} ${seconds(one.values[index])}`).join(", ")}`,
      })),
  };
}

const auditPart = {
  id: "log",
  title: "The log",
  has: (run) => Boolean(run.audit),
  data: (run) => [run.audit],
  build(run) {
    const { sources, rows, unreadable, blind, findings } = run.audit;
    return part(
      "log",
      "The log",
      "What was read, and what was not.",
      el(
        "div",
        { class: "grid two" },
        card(
          el("h3", {}, "Rows"),
          table(
            ["what", ["rows", "num"]],
            rows.map(([label, count]) => [label, num(count)]),
            "Rows of the log",
          ),
          el("h4", { style: "margin-top: .8rem" }, "Sources"),
          el(
            "ul",
            { class: "small mono" },
            sources.map((one) => el("li", { style: "overflow-wrap: anywhere" }, one)),
          ),
          unreadable.length
            ? [el("h4", {}, "Left out"), table(["file", "why"], unreadable, "Files left out")]
            : null,
        ),
        findings.length
          ? card(
              el("h3", {}, "Findings"),
              el(
                "ul",
                { class: "evidence" },
                findings.map((one) =>
                  el(
                    "li",
                    { class: `tone-${one.severity === "bad" ? "bad" : "fair"}` },
                    icon(one.severity === "bad" ? "bad" : "fair"),
                    el(
                      "span",
                      {},
                      el("strong", {}, `${sentence(one.name)} since step ${one.since_step}: `),
                      one.text,
                    ),
                  ),
                ),
              ),
            )
          : null,
        blind.length
          ? card(
              el("h3", {}, "Prompts whose reward sees no difference"),
              scrolling(
                "Reward-blind prompts",
                blind.map((one) =>
                  el(
                    "details",
                    {},
                    el("summary", {}, `step ${one.step}: ${one.reason}`),
                    one.examples.map((text) => el("pre", {}, text)),
                  ),
                ),
              ),
            )
          : null,
      ),
    );
  },
};

const settingsPart = {
  id: "settings",
  title: "Settings",
  has: (run) => run.settings.length + run.versions.length + run.absent.length > 0,
  data: (run) => [run.settings, run.versions, run.absent],
  build(run) {
    return part(
      "settings",
      "Settings and versions",
      null,
      el(
        "div",
        { class: "stack" },
        el(
          "details",
          { class: "card" },
          el("summary", {}, "Settings"),
          el(
            "div",
            { class: "grid" },
            run.settings.map(([section, rows]) =>
              el(
                "div",
                {},
                el("h3", { class: "minor" }, section || "run"),
                table(["setting", "value"], rows, `Settings, ${section}`),
              ),
            ),
          ),
        ),
        el(
          "details",
          { class: "card" },
          el("summary", {}, "Versions"),
          table(["what", "version"], run.versions, "Versions"),
        ),
        run.absent.length
          ? el(
              "details",
              { class: "card" },
              el("summary", {}, `What could not be computed (${run.absent.length})`),
              table(["metric", "why"], run.absent, "Not computed"),
            )
          : null,
      ),
    );
  },
};
