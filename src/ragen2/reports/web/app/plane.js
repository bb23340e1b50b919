// The regime plane: H(Z|X) across, I(X;Z) up, and the way that a run took over it.

const REGIMES = {
  diverse_grounded: ["circle", "diverse, grounded"],
  compressed_grounded: ["rect", "compressed, grounded"],
  template_collapse: ["triangle", "template collapse"],
  low_entropy_collapse: ["diamond", "low-entropy collapse"],
  undecided: ["emptyCircle", "undecided"],
};
const SIDES = ["top", "bottom"];
const UNJUDGED = ["emptyCircle", "not judged"];
const CORNERS = [
  ["compressed, grounded", { left: 14, top: 8 }],
  ["diverse, grounded (healthy)", { right: 10, top: 8 }],
  ["low-entropy collapse", { left: 14, bottom: 8 }],
  ["template collapse", { right: 10, bottom: 8 }],
];

function regimeOf(point) {
  return REGIMES[point.regime] || UNJUDGED;
}

// paths: [{name, points, colour}]; with a colour the path is one run of several, else colour tells time.
function planeSpec({ id, title, paths, plane, about, isNear = false }) {
  const all = paths.flatMap((path) => path.points);
  const highest = Math.max(...all.map((point) => point.y), 0);
  const showsBound = isNumber(plane.bound) && plane.bound <= 2.5 * highest;
  const shade = (path, i) =>
    path.colour === undefined
      ? mix(colours.t0, colours.t1, path.points.length > 1 ? i / (path.points.length - 1) : 1)
      : seriesColour(path.colour);
  return {
    id,
    title,
    about,
    size: "tall",
    unit: "up: I(X;Z) · across: H(Z|X)",
    keys: () => [
      ...paths
        .filter((path) => path.colour !== undefined)
        .map((path) => ({
          name: path.name,
          mark: "area",
          colour: seriesColour(path.colour),
        })),
      ...[...new Set(all.map(regimeOf))].map(([mark, name]) => ({
        name,
        mark: `dot:${mark}`,
        colour: colours.t1,
      })),
      ...(paths.some((path) => path.colour === undefined && path.points.length > 1)
        ? [
            { name: "first step", mark: "area", colour: colours.t0 },
            { name: "last step", mark: "area", colour: colours.t1 },
          ]
        : []),
      ...(isNumber(plane.bound)
        ? [
            {
              name: `bound log P ${num(plane.bound)}${showsBound ? "" : ", above the chart"}`,
              mark: "dash",
              colour: colours.quiet,
            },
          ]
        : []),
    ],
    describe: paths.map((path) => describePath(path)).join(" "),
    option: () => ({
      grid: plotGrid({ left: 26, bottom: 26, top: 16, right: 24 }),
      graphic: (isNear || innerWidth < 700 ? [] : CORNERS).map(([text, place]) => cornerLabel(text, place)),
      xAxis: valueAxis({
        name: `H(Z|X), ${plane.x_unit}`,
        nameLocation: "middle",
        nameGap: 26,
        scale: isNear,
        boundaryGap: ["4%", "12%"],
      }),
      yAxis: valueAxis({
        name: `I(X;Z), ${plane.y_unit}`,
        nameLocation: "middle",
        nameGap: 44,
        scale: isNear,
        boundaryGap: ["4%", "12%"],
        max: showsBound && !isNear ? Math.ceil(4.3 * Math.max(highest, plane.bound)) / 4 : undefined,
      }),
      tooltip: tooltip("item", (params) => planeTip(params, paths)),
      series: [
        ...paths.flatMap((path, p) => pathSeries(path, p, (i) => shade(path, i), isNear)),
        ...(showsBound && !isNear ? [boundLine(plane.bound)] : []),
      ],
    }),
    numbers: () => ({
      heads: [
        ["step", "num"],
        ...(paths.length > 1 ? ["run"] : []),
        ["H(Z|X)", "num"],
        ["I(X;Z)", "num"],
        "regime",
      ],
      rows: paths.flatMap((path) =>
        path.points.map((point) => [
          String(point.step),
          ...(paths.length > 1 ? [path.name] : []),
          num(point.x),
          num(point.y),
          regimeOf(point)[1],
        ]),
      ),
    }),
    stops: () =>
      paths.flatMap((path, p) =>
        path.points.map((point, index) => ({
          series: 2 * p,
          index,
          text: `${path.name} step ${point.step}: entropy ${num(point.x)}, information ${num(point.y)}, ${regimeOf(point)[1]}`,
        })),
      ),
  };
}

function boundLine(bound) {
  const line = { color: colours.quiet, type: [5, 4], width: 1.3 };
  return {
    type: "line",
    data: [],
    silent: true,
    markLine: {
      silent: true,
      animation: false,
      symbol: "none",
      label: { show: false },
      data: [{ yAxis: bound, lineStyle: line }],
    },
  };
}

function pathSeries(path, p, shade, isNear) {
  const labelled =
    path.colour === undefined ? labelledPoints(path.points, isNear) : new Set([path.points.length - 1]);
  return [
    {
      type: "scatter",
      name: String(p),
      z: 4,
      data: path.points.map((point, i) => ({
        value: [point.x, point.y],
        symbol: regimeOf(point)[0],
        symbolSize: labelled.has(i) ? 12 : 7,
        itemStyle: { color: shade(i), borderColor: colours.paper, borderWidth: 1, opacity: 1 },
        label: {
          show: labelled.has(i),
          formatter: stepLabel(path, i),
          position: path.colour === undefined ? labelSide(path.points, i) : SIDES[path.colour % 2],
          distance: path.colour === undefined ? 7 : 16,
          color: colours.ink,
          fontSize: 12,
          textBorderColor: colours.paper,
          textBorderWidth: 3,
        },
      })),
      labelLayout: { hideOverlap: true, moveOverlap: "shiftY" },
      emphasis: { scale: 1.4 },
    },
    {
      type: "line",
      silent: true,
      symbol: "none",
      z: 2,
      data: path.points.map((point) => [point.x, point.y]),
      lineStyle: { color: path.colour === undefined ? colours.quiet : shade(0), width: 1.2, opacity: 0.75 },
      tooltip: { show: false },
      markLine: {
        silent: true,
        animation: false,
        symbol: ["none", "arrow"],
        symbolSize: 9,
        label: { show: false },
        data: arrows(path.points, shade),
      },
    },
  ];
}

function stepLabel(path, i) {
  const { step } = path.points[i];
  return path.colour !== undefined && i === path.points.length - 1
    ? `${path.name}, step ${step}`
    : `step ${step}`;
}

// The last point, the first, and some between, as long as their labels stand apart.
function labelledPoints(points, isNear) {
  const span = (name) =>
    Math.max(...points.map((point) => point[name])) -
      (isNear ? Math.min(...points.map((point) => point[name])) : 0) || 1;
  const [width, height] = [span("x"), span("y")];
  const isApart = (i, j) =>
    Math.abs(points[i].x - points[j].x) / width > 0.12 || Math.abs(points[i].y - points[j].y) / height > 0.12;
  const chosen = [];
  const last = points.length - 1;
  const order = [
    last,
    ...[0, 0.5, 0.25, 0.75, 0.125, 0.875, 0.375, 0.625].map((share) => Math.round(share * last)),
  ];
  for (const i of order) if (i >= 0 && chosen.every((j) => isApart(i, j))) chosen.push(i);
  return new Set(chosen.slice(0, 6));
}

// A label goes to the side that the path does not take.
function labelSide(points, i) {
  const others = [points[i - 1], points[i + 1]].filter(Boolean);
  return others.every((other) => other.y <= points[i].y)
    ? "top"
    : others.every((other) => other.y >= points[i].y)
      ? "bottom"
      : others[0].x > points[i].x
        ? "left"
        : "right";
}

// Which way time goes: arrowheads on a few parts of the way.
function arrows(points, shade) {
  const starts = evenly(
    points.slice(0, -1).map((_, i) => i),
    7,
  );
  return starts
    .filter((i) => points[i].x !== points[i + 1].x || points[i].y !== points[i + 1].y)
    .map((i) => [
      { coord: [points[i].x, points[i].y], lineStyle: { color: shade(i + 1), type: "solid", width: 1.4 } },
      { coord: along(points[i], points[i + 1], 0.62) },
    ]);
}

function along(from, to, share) {
  return [from.x + share * (to.x - from.x), from.y + share * (to.y - from.y)];
}

function cornerLabel(text, place) {
  const at = { ...place };
  if ("left" in at) at.left += 62;
  if ("bottom" in at) at.bottom += 56;
  if ("right" in at) at.right += 24;
  if ("top" in at) at.top += 12;
  return {
    type: "text",
    silent: true,
    z: 0,
    ...at,
    style: { text, fill: colours.quiet, font: "italic 12px system-ui, sans-serif" },
  };
}

function planeTip(params, paths) {
  const path = paths[Number(params.seriesName)];
  const point = path?.points[params.dataIndex];
  if (!point) return null;
  return tip(
    `${paths.length > 1 ? `${path.name}, ` : ""}step ${num(point.step)}`,
    [
      { name: "H(Z|X)", value: num(point.x) },
      { name: "I(X;Z)", value: num(point.y) },
    ],
    [regimeOf(point)[1]],
  );
}

function describePath({ name, points }) {
  const [first, last] = [points[0], points[points.length - 1]];
  return `${name}: entropy from ${num(first.x)} to ${num(last.x)}, information from ${num(first.y)} to ${num(last.y)}, steps ${first.step} to ${last.step}; at the end ${regimeOf(last)[1]}.`;
}

// The whole plane says where a run is; from near one sees how it moved.
function planeCard(specOf, subject) {
  let current = subject;
  let isNear = false;
  const chart = new ChartCard(specOf(current, isNear));
  const toggle = button(
    "Look from near",
    () => {
      isNear = !isNear;
      toggle.setAttribute("aria-pressed", String(isNear));
      chart.refresh(specOf(current, isNear));
    },
    { "aria-pressed": "false", "data-key": "plane-near" },
  );
  const refresh = (next) => {
    current = next;
    chart.refresh(specOf(current, isNear));
  };
  return {
    node: el("div", { class: "stack" }, el("div", { class: "controls" }, toggle), chart.node),
    refresh,
  };
}

const planePart = {
  id: "plane",
  title: "Regime plane",
  has: (run) => Boolean(run.plane?.points.length),
  data: (run) => [run.plane],
  build(run) {
    const specOf = (next, isNear) =>
      planeSpec({
        isNear,
        id: `chart-${next.id}-plane`,
        title: "Where the run is, and how it came there",
        paths: [{ name: "this run", points: next.plane.points }],
        plane: next.plane,
      });
    const chart = planeCard(specOf, run);
    const node = part(
      "plane",
      "Regime plane",
      "Entropy alone (across) cannot tell varied reasoning from varied templates. Information about the prompt (up) can.",
      chart.node,
    );
    node.refresh = chart.refresh;
    return node;
  },
};
