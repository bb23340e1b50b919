// One chart: a title with its unit, keys, the drawing, and the same numbers as a table.
//
// A spec has: id, title, unit, about, size, keys, describe (what a reader who cannot see it should know),
// option() (for ECharts; asked again when colours change), numbers() ({heads, rows}), stops (what the arrow
// keys visit: {series, index, text}), and onReady(chart).

const charts = new Set();

class ChartCard {
  constructor(spec) {
    this.drawn = null;
    this.plot = el("div", {
      class: `plot ${spec.size || ""}`,
      tabindex: 0,
      role: "group",
      "aria-roledescription": "chart",
      "data-key": `plot-${spec.id}`,
      onkeydown: (event) => this.walk(event),
      onblur: () => this.hideTip(),
    });
    this.head = el("div", { class: "head" });
    this.keys = el("ul", { class: "keys" });
    this.numbers = el(
      "details",
      { class: "numbers", ontoggle: () => this.fillNumbers() },
      el("summary", {}, "Numbers"),
      el("div"),
    );
    this.node = el(
      "figure",
      { class: "card chart", id: spec.id, "data-chart": spec.id },
      this.head,
      this.keys,
      this.plot,
      this.numbers,
    );
    this.refresh(spec);
    charts.add(this);
    seen.observe(this.plot);
    sizes.observe(this.plot);
    this.plot.ragen2Chart = this;
  }

  refresh(spec) {
    this.spec = spec;
    this.at = -1;
    this.head.replaceChildren(
      ...[
        el("h3", {}, spec.title),
        spec.unit && el("span", { class: "unit" }, spec.unit),
        spec.about && el("p", { class: "about" }, spec.about),
      ].filter(Boolean),
    );
    this.plot.setAttribute(
      "aria-label",
      `${spec.title}${spec.unit ? `, ${spec.unit}` : ""}. ${spec.describe || ""}`.trim(),
    );
    this.refreshKeys();
    if (this.drawn) this.setOption();
    if (this.numbers.open) this.fillNumbers();
  }

  refreshKeys() {
    const keys = this.spec.keys ? this.spec.keys() : [];
    this.keys.replaceChildren(...keys.map((key) => el("li", {}, keyMark(key), key.name)));
  }

  draw() {
    if (this.drawn || !this.plot.isConnected || !this.plot.clientWidth) return;
    this.drawn = echarts.init(this.plot, null, { renderer: "svg" });
    this.setOption();
    if (this.spec.onReady) this.spec.onReady(this.drawn);
  }

  setOption() {
    this.drawn.setOption(
      { animation: false, textStyle: { fontFamily: "inherit" }, ...this.spec.option() },
      { notMerge: true },
    );
    this.spec.onDrawn?.(this.drawn);
  }

  recolour() {
    this.refreshKeys();
    if (this.drawn) this.setOption();
  }

  fillNumbers() {
    const { heads, rows } = this.spec.numbers();
    const shown = rows.length ? table(heads, rows, this.spec.title) : el("p", { class: "quiet" }, "None.");
    if (this.numbers.open)
      this.numbers.lastChild.replaceChildren(scrolling(`${this.spec.title}, numbers`, shown));
  }

  // Arrow keys visit the points one by one, for readers without a mouse.
  walk(event) {
    const stops = this.spec.stops ? this.spec.stops() : [];
    const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") this.hideTip();
    if (!(event.key in moves) || !stops.length) return;
    event.preventDefault();
    this.draw();
    const from = this.at < 0 ? (moves[event.key] > 0 ? -1 : stops.length) : this.at;
    this.at = Math.max(0, Math.min(stops.length - 1, from + moves[event.key]));
    const stop = stops[this.at];
    this.drawn.dispatchAction({ type: "showTip", seriesIndex: stop.series, dataIndex: stop.index });
    announce(stop.text);
  }

  hideTip() {
    if (this.drawn) this.drawn.dispatchAction({ type: "hideTip" });
  }

  dispose() {
    seen.unobserve(this.plot);
    sizes.unobserve(this.plot);
    if (this.drawn) this.drawn.dispose();
    charts.delete(this);
  }
}

// Charts that are not on the screen are not drawn: a page of forty opens at once.
const seen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) if (entry.isIntersecting) entry.target.ragen2Chart.draw();
  },
  { rootMargin: "400px" },
);

const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const { drawn } = target.ragen2Chart;
    if (drawn && target.clientWidth) drawn.resize();
  }
});

function sweepCharts() {
  for (const one of [...charts]) if (!one.node.isConnected) one.dispose();
}

addEventListener("beforeprint", () => charts.forEach((one) => one.draw()));
theme.listeners.push(() => charts.forEach((one) => one.recolour()));

// What stands before a name in a legend: a line, a dash, a shape or an area, as it is drawn.
const SHAPES = {
  circle: "M11 2.6a3.4 3.4 0 1 0 .01 0Z",
  triangle: "M11 2l4 7H7Z",
  rect: "M7.8 2.8h6.4v6.4H7.8Z",
  diamond: "M11 1.4l4.4 4.6L11 10.6 6.6 6Z",
  emptyCircle: "M11 2.6a3.4 3.4 0 1 0 .01 0Z",
};

function keyMark({ mark, colour, pattern }) {
  const paint = colour || colours.ink;
  const parts = {
    dash: () => [
      svg("path", { d: "M1 6h20", stroke: paint, "stroke-width": 1.5, "stroke-dasharray": "4 3" }),
    ],
    area: () => [
      svg("rect", { x: 3, y: 1, width: 16, height: 10, rx: 2, fill: paint }),
      pattern && svg("path", { d: "M5 11 13 1M10 11 18 1", stroke: colours.paper, "stroke-width": 1.6 }),
    ],
    band: () => [svg("rect", { x: 1, y: 1, width: 20, height: 10, rx: 2, fill: paint, opacity: 0.25 })],
    event: () => [
      svg("path", { d: "M11 0v12", stroke: paint, "stroke-width": 1.5, "stroke-dasharray": "2 2" }),
    ],
  };
  const shape = () => [
    svg("path", { d: "M1 6h20", stroke: paint, "stroke-width": 2, opacity: mark.startsWith("dot:") ? 0 : 1 }),
    svg("path", {
      d: SHAPES[mark.replace("dot:", "")] || SHAPES.circle,
      fill: mark.includes("empty") ? colours.paper : paint,
      stroke: paint,
    }),
  ];
  return svg(
    "svg",
    { width: 22, height: 12, viewBox: "0 0 22 12", "aria-hidden": "true" },
    (parts[mark] || shape)().filter(Boolean),
  );
}
