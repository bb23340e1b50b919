// Curves over steps: bands, chance and bound lines, events, zoom, and any other metric on request.

function pointsOf(run, name) {
  const metric = run.metrics[name];
  if (!metric) return [];
  return run.steps
    .map((step, i) => ({ step, value: metric.values[i], low: metric.low?.[i], high: metric.high?.[i] }))
    .filter((point) => isNumber(point.value));
}

// lines: [{name, points, mark, colour index, isGuide}]. Every chart over steps is made here, of one run or of several.
function curveSpec({
  id,
  title,
  unit,
  about,
  lines,
  steps,
  floor,
  ceiling,
  events = [],
  logarithmic = false,
}) {
  const drawable = lines.filter((line) => line.points.length);
  const top = topOf(drawable);
  const shown = drawable.filter((line) => !isOffScale(line, top));
  const hasBands = !logarithmic && shown.filter((line) => !line.isGuide).length <= 3;
  const look = (line, i) => ({
    colour: line.isGuide ? colours.quiet : seriesColour(line.colour ?? i),
    mark: line.isGuide ? "dash" : SYMBOLS[(line.colour ?? i) % SYMBOLS.length],
  });
  const bandOf = (line) =>
    hasBands && !line.isGuide
      ? line.points.filter((point) => isNumber(point.low) && isNumber(point.high))
      : [];
  const main = shown.filter((line) => !line.isGuide);
  return {
    id,
    title,
    unit,
    about,
    kind: "curve",
    steps,
    keys: () => [
      ...shown.map((line, i) => ({ name: line.name, ...look(line, i) })),
      ...(shown.some((line) => bandOf(line).length)
        ? [{ name: "95% interval", mark: "band", colour: look(main[0], 0).colour }]
        : []),
      ...drawable
        .filter((line) => isOffScale(line, top))
        .map((line) => ({
          name: `${line.name}: ${num(line.points[line.points.length - 1].value)}, above the chart`,
          mark: "dash",
          colour: colours.quiet,
        })),
    ],
    describe: main.map((line) => describeLine(line)).join(" "),
    option: () => ({
      grid: plotGrid({ top: 18 }),
      xAxis: stepAxis(steps),
      dataZoom: [
        {
          type: "inside",
          zoomOnMouseWheel: "ctrl",
          moveOnMouseMove: false,
          moveOnMouseWheel: false,
          filterMode: "none",
          throttle: 60,
        },
      ],
      toolbox: {
        show: true,
        itemSize: 0,
        left: -50,
        feature: {
          dataZoom: {
            yAxisIndex: "none",
            filterMode: "none",
            brushStyle: { color: colours.accent, opacity: 0.12 },
          },
        },
      },
      yAxis: valueAxis({
        ...(logarithmic ? { type: "log" } : axisEnds(floor, ceiling)),
        scale: !isNumber(floor),
      }),
      tooltip: tooltip("axis", (params) => curveTip(params, shown, look, events)),
      series: [
        ...shown.map((line, i) =>
          lineSeries(line, look(line, i), i === 0 ? eventLines(events) : undefined, logarithmic),
        ),
        ...shown.flatMap((line, i) =>
          bandOf(line).length ? bandSeries(`${line.name} ${i}`, bandOf(line), look(line, i).colour) : [],
        ),
      ],
    }),
    numbers: () => curveNumbers(drawable),
    stops: () =>
      (main[0] || shown[0])?.points.map((point, index) => ({
        series: shown.indexOf(main[0] || shown[0]),
        index,
        text: `step ${point.step}: ${num(point.value)}`,
      })) || [],
    onReady: zoomable,
    onDrawn: (chart) =>
      chart.dispatchAction({ type: "takeGlobalCursor", key: "dataZoomSelect", dataZoomSelectActive: true }),
  };
}

function axisEnds(floor, ceiling) {
  const ends = { min: floor ?? undefined, max: ceiling ?? undefined };
  return isNumber(floor) && isNumber(ceiling) ? { ...ends, interval: (ceiling - floor) / 4 } : ends;
}

// A bound far above the curve would flatten it: then it is given in words.
function topOf(lines) {
  return Math.max(
    ...lines
      .filter((line) => !line.isGuide)
      .flatMap((line) => line.points.map((point) => point.high ?? point.value)),
  );
}

function isOffScale(line, top) {
  return Boolean(line.isGuide) && top > 0 && Math.min(...line.points.map((point) => point.value)) > 2.5 * top;
}

function lineSeries(line, { colour, mark }, markLine, logarithmic) {
  const points = logarithmic ? line.points.filter((point) => point.value > 0) : line.points;
  return {
    type: "line",
    name: line.name,
    data: points.map((point) => [point.step, point.value]),
    color: colour,
    z: line.isGuide ? 2 : 3,
    markLine,
    symbol: line.isGuide ? "none" : mark,
    symbolSize: sparseSymbols(points.length),
    showAllSymbol: true,
    emphasis: { disabled: true },
    lineStyle: { width: line.isGuide ? 1.3 : 2, type: line.isGuide ? [5, 4] : "solid", color: colour },
  };
}

function curveTip(params, shown, look, events) {
  const step = params[0]?.axisValue;
  if (step === undefined) return null;
  const rows = shown.flatMap((line, i) => {
    const point = line.points.find((one) => one.step === step);
    const range = point ? interval(point.low, point.high) : "";
    return point
      ? [{ key: look(line, i), name: line.name, value: num(point.value) + (range ? ` (${range})` : "") }]
      : [];
  });
  const here = events
    .filter((event) => event.step === step)
    .map((event) => `${EVENTS[event.kind]?.[0] || "●"} ${event.text}`);
  return tip(`step ${num(step)}`, rows, here.slice(0, 4));
}

function describeLine({ name, points }) {
  const last = points[points.length - 1];
  if (points.length < 2) return `${name}: ${num(last.value)} at step ${last.step}.`;
  return `${name}: from ${num(points[0].value)} at step ${points[0].step} to ${num(last.value)} at step ${last.step}.`;
}

function curveNumbers(lines) {
  const steps = [...new Set(lines.flatMap((line) => line.points.map((point) => point.step)))].sort(
    (a, b) => a - b,
  );
  const at = lines.map((line) => new Map(line.points.map((point) => [point.step, point])));
  const cell = (point) =>
    point
      ? num(point.value) + (interval(point.low, point.high) && ` (${interval(point.low, point.high)})`)
      : NONE;
  return {
    heads: [["step", "num"], ...lines.map((line) => [line.name, "num"])],
    rows: steps.map((step) => [String(step), ...at.map((map) => cell(map.get(step)))]),
  };
}

// Drag over a chart, or hold Ctrl and turn the wheel: all curves show the same steps.
function zoomable(chart) {
  chart.on("datazoom", () => {
    const { startValue, endValue } = chart.getOption().dataZoom[0];
    setRange(Math.floor(startValue), Math.ceil(endValue));
  });
}

function setRange(from, to) {
  const isWrong = isNumber(from) && isNumber(to) && from >= to;
  state.range = isWrong ? [null, null] : [from, to];
  for (const one of showAllCharts("curve")) if (one.drawn) one.setOption();
  document.querySelectorAll("[data-range]").forEach((input) => {
    input.value = state.range[Number(input.dataset.range)] ?? "";
  });
}

function rangeControls(steps) {
  const first = steps[0] ?? 0;
  const last = steps[steps.length - 1] ?? 0;
  const field = (i, label, hint) =>
    labelled(
      label,
      el("input", {
        type: "number",
        min: first,
        max: last,
        placeholder: hint,
        value: state.range[i] ?? "",
        "data-range": i,
        "data-key": `range-${i}`,
        onchange: (event) =>
          setRange(
            ...(i
              ? [state.range[0], typedStep(event.target.value)]
              : [typedStep(event.target.value), state.range[1]]),
          ),
      }),
    );
  return el(
    "div",
    { class: "controls" },
    field(0, "from step", first),
    field(1, "to step", last),
    button("All steps", () => setRange(null, null), { "data-key": "range-all" }),
    el("span", { class: "quiet small" }, "or drag across a chart"),
  );
}

function chartLines(run, chart) {
  return [
    ...chart.series.map((one, i) => ({ name: one.name, points: pointsOf(run, one.metric), colour: i })),
    ...(chart.guides || []).map((one) => ({
      name: one.name,
      points: pointsOf(run, one.metric),
      isGuide: true,
    })),
  ];
}

function runCurveSpec(run, chart) {
  return curveSpec({
    ...chart,
    id: `chart-${run.id}-${chart.id}`,
    lines: chartLines(run, chart),
    steps: run.steps,
    events: run.events,
  });
}

function drawable(run) {
  return run.charts.filter((chart) => chart.series.some((one) => pointsOf(run, one.metric).length));
}

const curvesPart = {
  id: "curves",
  title: "Curves",
  has: (run) => drawable(run).length > 0,
  data: (run) => [run.steps, run.metrics, run.charts, run.events],
  build(run) {
    const cards = new Map();
    const grid = el("div", { class: "grid" });
    const explorer = metricExplorer(run);
    const events = el("div");
    const signs = el("ul", { class: "keys" });
    const refresh = (next) => {
      const wanted = drawable(next).filter((chart) => !isRewardChart(chart));
      for (const chart of wanted) {
        const spec = runCurveSpec(next, chart);
        if (cards.has(chart.id)) cards.get(chart.id).refresh(spec);
        else {
          cards.set(chart.id, new ChartCard(spec));
          grid.append(cards.get(chart.id).node);
        }
      }
      explorer.refresh(next);
      events.replaceChildren(...eventTable(next));
      signs.replaceChildren(...eventKeys(next.events).map((key) => el("li", {}, keyMark(key), key.name)));
    };
    const node = part(
      "curves",
      "Curves",
      "Shaded: 95% intervals. Dashed: chance and bounds.",
      el("div", { class: "stack" }, rangeControls(run.steps), signs, grid),
      explorer.node,
      events,
    );
    node.refresh = refresh;
    refresh(run);
    return node;
  },
};

function eventTable(run) {
  if (!run.events.length) return [];
  const rows = run.events.map((event) => [
    String(event.step),
    `${EVENTS[event.kind]?.[0] || "●"} ${EVENTS[event.kind]?.[1] || sentence(event.kind)}`,
    event.text,
  ]);
  return [
    el(
      "details",
      { class: "card", style: "margin-top: 1rem" },
      el("summary", {}, `Events (${run.events.length})`),
      scrolling("Events", table([["step", "num"], "what", "words"], rows, "Events")),
    ),
  ];
}
