// Input, reasoning, action: which link carries something, turn by turn.

const NODES = { X: [52, 108, "X", "prompt"], Z: [200, 36, "Z", "reasoning"], A: [348, 108, "A", "action"] };

const flowPart = {
  id: "flow",
  title: "Information flow",
  has: (run) => run.flow.length > 0,
  data: (run) => [run.flow],
  build: (run) =>
    redrawnPart(
      run,
      {
        id: "flow",
        title: "Information flow",
        words: "Does the prompt reach the reasoning, and does the reasoning reach the action?",
      },
      (current, draw) => {
        const steps = [...new Set(current.flow.map((one) => one.step))];
        const chosen = choice(current, "flow", steps, String);
        const options = steps.map((one) => [one, `step ${one}`]);
        return [
          chooser(current, "flow", draw, { label: "step", options, chosen, key: "flow-step" }),
          el(
            "ul",
            { class: "keys" },
            el("li", {}, linkSample(true), "link seen (p at most 0.01)"),
            el("li", {}, linkSample(false), "not seen"),
            el("li", {}, linkSample(null), "not measured"),
          ),
          current.flow.filter((one) => one.step === chosen).map((one) => flowRow(one)),
        ];
      },
    ),
};

function flowRow(flow) {
  const rows = flow.links.map((link) => [
    link.name,
    num(link.value) + (interval(link.low, link.high) && ` (${interval(link.low, link.high)})`),
    link.unit,
    num(link.p),
    seenBadge(link.seen),
  ]);
  return el(
    "div",
    { class: "card stack" },
    el("h3", {}, flow.label),
    flow.reading && el("p", {}, flow.reading),
    el(
      "div",
      { class: "flow-row" },
      flowDrawing(flow),
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": `Links, ${flow.label}` },
        table(["link", ["value (95%)", "num"], "unit", ["p", "num"], "seen?"], rows, `Links, ${flow.label}`),
      ),
    ),
  );
}

function seenBadge(seen) {
  if (seen === null || seen === undefined) return badge("unknown", "not measured");
  return seen ? badge("good", "seen") : badge("fair", "not seen");
}

function linkLook(seen) {
  if (seen === null || seen === undefined)
    return { stroke: "var(--quiet)", "stroke-width": 1.2, "stroke-dasharray": "1 4" };
  return seen
    ? { stroke: "var(--s1)", "stroke-width": 3.2 }
    : { stroke: "var(--fair)", "stroke-width": 1.6, "stroke-dasharray": "6 5" };
}

function linkSample(seen) {
  return svg(
    "svg",
    { width: 30, height: 10, viewBox: "0 0 30 10", "aria-hidden": "true" },
    svg("path", { d: "M1 5h28", ...linkLook(seen) }),
  );
}

function flowDrawing(flow) {
  const drawn = [
    ["X", "Z"],
    ["Z", "A"],
    ["X", "A"],
  ]
    .map(([from, to]) => [from, to, flow.links.find((link) => link.from === from && link.to === to)])
    .filter(([, , link]) => link);
  const words = drawn
    .map(([from, to, link]) => `${from} to ${to}: ${num(link.value)} ${link.unit}`)
    .join("; ");
  return svg(
    "svg",
    { viewBox: "0 0 400 158", role: "img", "aria-label": `${flow.label}. ${words}`, "data-flow": flow.label },
    drawn.flatMap(([from, to, link]) => flowLink(from, to, link)),
    Object.values(NODES).map(([x, y, letter, name]) =>
      svg(
        "g",
        {},
        svg("circle", {
          cx: x,
          cy: y,
          r: 21,
          fill: "var(--paper)",
          stroke: "var(--ink)",
          "stroke-width": 1.6,
        }),
        svg(
          "text",
          { x, y: y + 5.5, "text-anchor": "middle", "font-size": 16, "font-weight": 650, fill: "var(--ink)" },
          letter,
        ),
        svg(
          "text",
          {
            x: letter === "Z" ? x + 29 : x,
            y: letter === "Z" ? y + 4 : y + 37,
            "text-anchor": letter === "Z" ? "start" : "middle",
            "font-size": 12.5,
            fill: "var(--quiet)",
          },
          name,
        ),
      ),
    ),
  );
}

function flowLink(from, to, link) {
  const [x1, y1] = NODES[from];
  const [x2, y2] = NODES[to];
  const length = Math.hypot(x2 - x1, y2 - y1);
  const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length];
  const [sx, sy, ex, ey] = [x1 + 23 * ux, y1 + 23 * uy, x2 - 30 * ux, y2 - 30 * uy];
  const look = linkLook(link.seen);
  const label = {
    x: (sx + ex) / 2 + (uy < 0 ? -10 : uy > 0 ? 10 : 0),
    y: (sy + ey) / 2 + (uy === 0 ? 18 : -8),
  };
  return [
    svg("path", { d: `M${sx} ${sy}L${ex} ${ey}`, ...look, fill: "none" }),
    svg("path", {
      d: `M${x2 - 22 * ux} ${y2 - 22 * uy}L${ex - 5 * uy - 1 * ux} ${ey + 5 * ux - 1 * uy}L${ex + 5 * uy - 1 * ux} ${ey - 5 * ux - 1 * uy}Z`,
      fill: look.stroke,
    }),
    svg(
      "text",
      {
        ...label,
        "text-anchor": uy < 0 ? "end" : uy > 0 ? "start" : "middle",
        "font-size": 13,
        "font-weight": 600,
        fill: "var(--ink)",
      },
      num(link.value),
    ),
  ];
}
