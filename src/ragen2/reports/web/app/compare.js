// Several runs side by side. A run keeps its colour and its symbol through the whole view.

function nameOf(data, id) {
  return data.runs.find((run) => run.id === id)?.name ?? id;
}

function runMark(data, id) {
  const i = data.runs.findIndex((run) => run.id === id);
  return keyMark({ mark: SYMBOLS[i % 4], colour: seriesColour(i) });
}

const tablePart = {
  id: "overview",
  title: "Overview",
  has: (data) => data.compare.table.length > 0,
  data: (data) => [data.compare.table, data.compare.notes, data.compare.filter_delta],
  build(data) {
    const { table: rows, columns, filter_delta: deltas, notes, success } = data.compare;
    const estimateCells = (one) => [
      estimate(one),
      one && isNumber(one.step) && el("div", { class: "quiet small" }, `at step ${one.step}`),
    ];
    return part(
      "overview",
      "Overview",
      `Peak and final ${success}, with 95% intervals.`,
      card(
        el(
          "div",
          { class: "scroll", tabindex: 0, role: "region", "aria-label": "Runs compared" },
          table(
            [
              "run",
              "verdict",
              ["peak", "num"],
              ["final", "num"],
              ...columns.map((column) => [column, "num"]),
            ],
            rows.map((row) => [
              el(
                "span",
                {
                  class: "stack",
                  style: "grid-template-columns: 1.6rem 1fr; gap: .3rem; align-items: center",
                },
                runMark(data, row.run),
                nameOf(data, row.run),
              ),
              badge(row.tone, row.verdict),
              estimateCells(row.peak),
              estimateCells(row.final),
              ...row.cells,
            ]),
            "Runs compared",
          ),
        ),
      ),
      deltas.length
        ? el(
            "div",
            { class: "stack", style: "margin-top: 1rem" },
            card(
              el("h3", {}, "What the filter changed"),
              el("p", { class: "quiet small" }, "Runs that are equal but for the filter."),
              el(
                "div",
                { class: "scroll", tabindex: 0, role: "region", "aria-label": "Filter compared" },
                table(
                  ["with the filter", "without", "difference", ["peak", "num"], ["final", "num"]],
                  deltas.map((one) => [
                    nameOf(data, one.with),
                    nameOf(data, one.without),
                    one.differs,
                    deltaText(one.peak),
                    deltaText(one.final),
                  ]),
                  "What the filter changed",
                ),
              ),
              deltas.map((one) => one.text && el("p", { class: "small" }, one.text)),
            ),
          )
        : null,
      notes.length ? el("div", { style: "margin-top: 1rem" }, noteList(notes)) : null,
    );
  },
};

function deltaText(one) {
  if (!one || !isNumber(one.value)) return NONE;
  const range = isNumber(one.low) && isNumber(one.high) ? ` (${signed(one.low)} to ${signed(one.high)})` : "";
  return signed(one.value) + range;
}

// One overlay for each chart of the runs, of its first metric; success comes first.
function overlays(data) {
  const wanted = new Map([
    [data.compare.success, { title: "Success", unit: "", floor: 0, ceiling: 1, guides: [] }],
  ]);
  for (const run of data.runs)
    for (const chart of run.charts) {
      const metric = chart.series[0]?.metric;
      if (metric && !wanted.has(metric))
        wanted.set(metric, {
          ...chart,
          title: chart.series.length > 1 ? `${chart.title}: ${chart.series[0].name}` : chart.title,
        });
    }
  return [...wanted].filter(([metric]) => data.runs.some((run) => pointsOf(run, metric).length));
}

function allSteps(data) {
  return [...new Set(data.runs.flatMap((run) => run.steps))].sort((a, b) => a - b);
}

function overlaySpec(data, metric, chart, id) {
  const guides = (chart.guides || []).map((one) => ({
    name: one.name,
    isGuide: true,
    points: data.runs.map((run) => pointsOf(run, one.metric)).find((points) => points.length) || [],
  }));
  return curveSpec({
    ...chart,
    id,
    unit: chart.unit || data.runs.map((run) => run.metrics[metric]?.unit).find(Boolean) || "",
    steps: allSteps(data),
    lines: [
      ...data.runs.map((run, i) => ({ name: run.name, points: pointsOf(run, metric), colour: i })),
      ...guides,
    ],
  });
}

const overlayPart = {
  id: "overlay",
  title: "Curves",
  has: (data) => overlays(data).length > 0,
  data: (data) => [data.runs.map((run) => [run.steps, run.metrics])],
  build(data) {
    let current = data;
    const grid = el("div", { class: "grid" });
    const cards = new Map();
    const put = (spec) => {
      if (cards.has(spec.id)) cards.get(spec.id).refresh(spec);
      else {
        cards.set(spec.id, new ChartCard(spec));
        grid.append(cards.get(spec.id).node);
      }
    };
    const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.metrics)))].sort();
    const more = el(
      "select",
      {
        "data-key": "overlay-metric",
        onchange: () => {
          if (more.value) put(overlaySpec(current, more.value, { title: more.value }, "chart-compare-more"));
        },
      },
      el("option", { value: "" }, "choose one"),
      names.map((name) => el("option", { value: name }, name)),
    );
    const draw = () =>
      overlays(current).forEach(([metric, chart], i) =>
        put(overlaySpec(current, metric, chart, `chart-compare-${i}`)),
      );
    draw();
    const node = part(
      "overlay",
      "Curves",
      "One line per run; its colour is the same everywhere.",
      el(
        "div",
        { class: "stack" },
        el(
          "div",
          { class: "controls" },
          ...rangeControls(allSteps(data)).childNodes,
          labelled("another metric", more),
        ),
        grid,
      ),
    );
    node.refresh = (next) => {
      current = next;
      draw();
    };
    return node;
  },
};

const pathsPart = {
  id: "paths",
  title: "Regime paths",
  has: (data) => data.runs.some((run) => run.plane?.points.length),
  data: (data) => [data.runs.map((run) => run.plane)],
  build(data) {
    const specOf = (next, isNear) => {
      const measured = next.runs.map((run, i) => ({ run, i })).filter(({ run }) => run.plane?.points.length);
      return planeSpec({
        isNear,
        id: "chart-compare-plane",
        title: "The way of each run",
        plane: { ...measured[0].run.plane, bound: null },
        paths: measured.map(({ run, i }) => ({ name: run.name, points: run.plane.points, colour: i })),
      });
    };
    const chart = planeCard(specOf, data);
    const node = part(
      "paths",
      "Regime paths",
      "Arrows show the way of time; the symbol of a point is its regime.",
      chart.node,
    );
    node.refresh = chart.refresh;
    return node;
  },
};

const correlationPart = {
  id: "correlation",
  title: "Correlation",
  has: (data) => data.compare.correlations.length > 0,
  data: (data) => [data.compare.correlations],
  build(data) {
    return part(
      "correlation",
      "What goes with success?",
      "Spearman's rank correlation with success over all runs. The paper's finding: information predicts success, entropy does not.",
      el(
        "div",
        { class: "grid two" },
        data.compare.correlations.map((one, i) => correlationCard(data, one, i)),
      ),
    );
  },
};

function correlationCard(data, one, i) {
  const range = interval(one.low, one.high);
  const summary = isNumber(one.rho)
    ? `ρ ${signed(one.rho)}${range ? ` (95% ${range})` : ""}${isNumber(one.p) ? `, p ${num(one.p)}` : ""}, ${num(one.n)} ${one.over}`
    : "too few points";
  const groups = data.runs
    .map((run, r) => ({ run, r, points: one.points.filter((point) => point.run === run.id) }))
    .filter(({ points }) => points.length);
  return new ChartCard({
    id: `chart-compare-correlation-${i}`,
    title: one.name,
    unit: summary,
    about: one.text,
    kind: "correlation",
    keys: () =>
      groups.map(({ run, r }) => ({
        name: run.name,
        mark: `dot:${SYMBOLS[r % 4]}`,
        colour: seriesColour(r),
      })),
    describe: summary,
    option: () => ({
      grid: plotGrid({ left: 26, bottom: 26 }),
      xAxis: valueAxis({
        name: `${one.name}${one.x_unit ? `, ${one.x_unit}` : ""}`,
        nameLocation: "middle",
        nameGap: 26,
      }),
      yAxis: valueAxis({
        name: data.compare.success,
        nameLocation: "middle",
        nameGap: 40,
        ...axisEnds(0, 1),
      }),
      tooltip: tooltip("item", (params) => {
        const { run, points } = groups[params.seriesIndex];
        const point = points[params.dataIndex];
        return tip(`${run.name}${isNumber(point.step) ? `, step ${point.step}` : ""}`, [
          { name: one.name, value: num(point.x) },
          { name: data.compare.success, value: num(point.y) },
        ]);
      }),
      series: groups.map(({ run, r, points }) => ({
        type: "scatter",
        name: run.name,
        symbol: SYMBOLS[r % 4],
        symbolSize: 9,
        color: seriesColour(r),
        data: points.map((point) => [point.x, point.y]),
      })),
    }),
    numbers: () => ({
      heads: ["run", ["step", "num"], [one.name, "num"], [data.compare.success, "num"]],
      rows: one.points.map((point) => [nameOf(data, point.run), num(point.step), num(point.x), num(point.y)]),
    }),
    stops: () =>
      groups.flatMap(({ run, points }, series) =>
        points.map((point, index) => ({
          series,
          index,
          text: `${run.name} step ${point.step}: ${num(point.x)}, ${num(point.y)}`,
        })),
      ),
  }).node;
}
