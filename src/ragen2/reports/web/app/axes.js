// Parts that all charts share: axes, tooltips built of text nodes, and marks of events.

const SYMBOLS = ["circle", "triangle", "rect", "diamond"];
const EVENTS = {
  warning: ["▲", "warning", "fair"],
  filter_empty: ["∅", "filter kept nothing", "bad"],
  checkpoint: ["■", "checkpoint", "quiet"],
  early_stop: ["✕", "early stop", "bad"],
  regime: ["◆", "regime change", "accent"],
  resume: ["↻", "resumed", "quiet"],
  note: ["●", "note", "quiet"],
};

function seriesColour(i) {
  return colours.series[i % colours.series.length];
}

function valueAxis(more = {}) {
  return {
    type: "value",
    scale: true,
    axisLine: { show: true, lineStyle: { color: colours.line } },
    axisTick: { show: false },
    axisLabel: { color: colours.quiet, fontSize: 12, hideOverlap: true, formatter: (value) => num(value) },
    splitLine: { lineStyle: { color: colours.grid } },
    splitNumber: 4,
    nameTextStyle: { color: colours.quiet, fontSize: 12 },
    ...more,
  };
}

function stepAxis(steps, more = {}) {
  const [from, to] = state.range;
  const first = steps[0] ?? 0;
  const last = steps[steps.length - 1] ?? 1;
  return valueAxis({
    min: from ?? first,
    max: to ?? Math.max(last, first + 1),
    minInterval: 1,
    splitLine: { show: false },
    splitNumber: 5,
    name: "step",
    nameLocation: "middle",
    nameGap: 24,
    ...more,
  });
}

function plotGrid(more = {}) {
  return {
    left: 8,
    right: 16,
    top: 12,
    bottom: 24,
    outerBoundsMode: "same",
    outerBoundsContain: "axisLabel",
    ...more,
  };
}

function tooltip(trigger, content) {
  return {
    trigger,
    confine: true,
    backgroundColor: colours.paper,
    borderColor: colours.line,
    padding: [6, 10],
    transitionDuration: 0,
    textStyle: { color: colours.ink },
    extraCssText: "box-shadow: 0 2px 10px rgba(0,0,0,.18);",
    axisPointer: { type: "line", lineStyle: { color: colours.quiet, type: "solid" }, label: { show: false } },
    formatter: (params) => content(params) || "",
  };
}

function tip(title, rows, extra = []) {
  return el(
    "div",
    { class: "tip" },
    el("b", {}, title),
    rows.map(({ key, name, value }) =>
      el(
        "div",
        { class: "row" },
        key ? keyMark(key) : el("span"),
        el("span", {}, name),
        el("span", {}, value),
      ),
    ),
    extra.map((text) => el("div", { class: "row" }, el("span", { class: "wide" }, text))),
  );
}

// Events of a kind stand under one sign above the curves; checkpoints are many and stay faint.
function eventLines(events) {
  const marks = events.filter((event) => event.kind in EVENTS && event.kind !== "checkpoint");
  const lines = evenly(marks, 40).map((event) => {
    const [sign, , colour] = EVENTS[event.kind];
    return {
      xAxis: event.step,
      lineStyle: { color: colours[colour], type: [2, 3], width: 1.2 },
      label: {
        show: true,
        formatter: sign,
        color: colours[colour],
        fontSize: 11,
        position: "end",
        distance: 1,
      },
    };
  });
  return lines.length ? { silent: true, symbol: "none", animation: false, data: lines } : undefined;
}

function eventKeys(events) {
  const kinds = [...new Set(events.map((event) => event.kind))].filter(
    (kind) => kind in EVENTS && kind !== "checkpoint",
  );
  return kinds.map((kind) => ({
    mark: "event",
    colour: colours[EVENTS[kind][2]],
    name: `${EVENTS[kind][0]} ${EVENTS[kind][1]}`,
  }));
}

// A symbol now and then tells lines apart without their colours; the last point always has one.
function sparseSymbols(count, size = 7) {
  const every = Math.max(1, Math.ceil(count / 9));
  return (value, params) => (params.dataIndex === count - 1 || params.dataIndex % every === 0 ? size : 0);
}

function bandSeries(name, points, colour) {
  const shared = {
    type: "line",
    stack: `band ${name}`,
    stackStrategy: "all",
    symbol: "none",
    silent: true,
    lineStyle: { opacity: 0 },
    tooltip: { show: false },
    z: 1,
    emphasis: { disabled: true },
  };
  return [
    { ...shared, data: points.map((point) => [point.step, point.low]) },
    {
      ...shared,
      data: points.map((point) => [point.step, point.high - point.low]),
      areaStyle: { color: colour, opacity: 0.16 },
    },
  ];
}

function showAllCharts(kind) {
  return [...charts].filter((one) => one.spec.kind === kind);
}

// Every second of several bars is hatched, so that they differ by more than colour.
function striped() {
  const hatch = {
    color: colours.paper,
    dashArrayX: [1, 0],
    dashArrayY: [2, 4],
    rotation: -Math.PI / 4,
    symbolSize: 1,
  };
  return {
    enabled: true,
    decal: { show: true, decals: [{ symbol: "none" }, hatch] },
    label: { enabled: false },
  };
}

function categoryAxis(names, title) {
  return {
    ...valueAxis(),
    type: "category",
    data: names,
    name: title,
    nameLocation: "middle",
    nameGap: 26,
    splitLine: { show: false },
    axisLabel: { color: colours.quiet, fontSize: 12, hideOverlap: true },
  };
}
