// Boards as pictures: shapes first, colours second, and a legend in words.

const CELL = 40;
const FLOOR = "#f3efe6";
const ICE = "#e6f1fa";
const WALL = "#5b6472";
const ON_ICE = ["ice", "hole", "start", "goal"];
const MARKS = {
  wall: (x, y) => [
    svg("path", {
      d: `M${x} ${y + 13}h40M${x} ${y + 27}h40M${x + 20} ${y}v13M${x + 10} ${y + 13}v14M${x + 30} ${y + 13}v14M${x + 20} ${y + 27}v13`,
      stroke: "#474f5b",
      "stroke-width": 1.5,
      fill: "none",
    }),
  ],
  hole: (x, y) => [
    svg("ellipse", { cx: x + 20, cy: y + 21, rx: 14, ry: 11, fill: "#1d2733" }),
    svg("ellipse", { cx: x + 20, cy: y + 24, rx: 10, ry: 6.5, fill: "#3d5266" }),
  ],
  start: (x, y) => [
    svg("text", { x: x + 20, y: y + 26, "text-anchor": "middle", "font-size": 15, fill: "#3f5468" }, "S"),
  ],
  goal: (x, y) => [
    svg("path", { d: `M${x + 13} ${y + 34}V${y + 7}`, stroke: "#26303c", "stroke-width": 2.6 }),
    svg("path", { d: `M${x + 14} ${y + 7}h17l-5 6 5 6H${x + 14}Z`, fill: "#b3500a" }),
  ],
  target: (x, y) => [
    svg("circle", { cx: x + 20, cy: y + 20, r: 10, fill: "none", stroke: "#a8201a", "stroke-width": 3 }),
    svg("circle", { cx: x + 20, cy: y + 20, r: 3, fill: "#a8201a" }),
  ],
  box: (x, y, fill = "#b9803c") => [
    svg("rect", {
      x: x + 6,
      y: y + 6,
      width: 28,
      height: 28,
      rx: 3,
      fill,
      stroke: "#4a3213",
      "stroke-width": 2,
    }),
    svg("path", {
      d: `M${x + 7} ${y + 7}l26 26M${x + 33} ${y + 7}l-26 26`,
      stroke: "#4a3213",
      "stroke-width": 1.8,
    }),
  ],
  box_on_target: (x, y) => [
    ...MARKS.box(x, y, "#5aa36f"),
    svg("circle", { cx: x + 20, cy: y + 20, r: 7, fill: "#f3efe6", stroke: "#a8201a", "stroke-width": 2.6 }),
  ],
  player: (x, y) => [
    svg("circle", { cx: x + 20, cy: y + 12.5, r: 6.5, fill: "#0b62b0" }),
    svg("path", { d: `M${x + 9} ${y + 34}c0-10 4-14 11-14s11 4 11 14Z`, fill: "#0b62b0" }),
  ],
  player_on_target: (x, y) => [...MARKS.target(x, y), ...MARKS.player(x, y)],
  player_on_goal: (x, y) => [...MARKS.goal(x - 7, y), ...MARKS.player(x + 5, y)],
  player_on_hole: (x, y) => [...MARKS.hole(x, y), ...MARKS.player(x, y - 3)],
};

function boardPicture(board) {
  const kinds = new Map(board.legend.map((one) => [one.symbol, one]));
  const ground = groundOf(board.legend);
  const columns = Math.max(...board.rows.map((row) => row.length), 1);
  const present = new Set(board.rows.flat());
  const legend = board.legend.filter((one) => present.has(one.symbol));
  const counts = legend
    .filter((one) => !["wall", "floor", "ice"].includes(one.kind))
    .map((one) => describeKind(board, one));
  return el(
    "div",
    { class: "stack" },
    svg(
      "svg",
      {
        class: "board",
        viewBox: `-1 -1 ${columns * CELL + 2} ${board.rows.length * CELL + 2}`,
        role: "img",
        "aria-label": `Board of ${board.rows.length} rows and ${columns} columns. ${counts.join(". ")}`,
      },
      board.rows.flatMap((row, r) =>
        row.map((symbol, c) => boardCell(kinds.get(symbol), symbol, c * CELL, r * CELL, ground)),
      ),
    ),
    el(
      "ul",
      { class: "keys" },
      legend.map((one) => el("li", {}, legendMark(one, ground), one.name)),
    ),
  );
}

function describeKind(board, { symbol, name }) {
  const places = board.rows.flatMap((row, r) =>
    row.flatMap((one, c) => (one === symbol ? [`row ${r + 1} column ${c + 1}`] : [])),
  );
  return `${name}: ${places.slice(0, 8).join(", ")}`;
}

// A player stands on ice where there is ice.
function groundOf(legend) {
  return legend.some((one) => ON_ICE.includes(one.kind)) ? ICE : FLOOR;
}

function boardCell(kind, symbol, x, y, ground) {
  const mark = MARKS[kind?.kind];
  const isPlain = kind?.kind === "floor" || kind?.kind === "ice";
  return svg(
    "g",
    {},
    svg("rect", {
      x,
      y,
      width: CELL,
      height: CELL,
      fill: kind?.kind === "wall" ? WALL : ground,
      stroke: "#c9cfd8",
    }),
    mark
      ? mark(x, y)
      : isPlain
        ? null
        : svg(
            "text",
            {
              x: x + 20,
              y: y + 26,
              "text-anchor": "middle",
              "font-size": symbol.length > 3 ? 12 : 17,
              "font-weight": 600,
              fill: "#1a2230",
            },
            symbol,
          ),
  );
}

function legendMark(one, ground) {
  return svg(
    "svg",
    { width: 18, height: 18, viewBox: `0 0 ${CELL} ${CELL}`, "aria-hidden": "true" },
    boardCell(one, one.symbol, 0, 0, ground),
  );
}

const LOST = "The image is missing from the run directory, or too large for this page.";

// The image that the agent was shown, and the board that its words tell of, side by side; null where
// there is neither.
function picturesOf(view, label) {
  const images = (view.images || []).filter((uri) => /^data:image\/(png|jpeg|gif|webp);base64,/.test(uri));
  const parts = images.map((uri, i) => ["Image", el("img", { src: uri, alt: `${label}, image ${i + 1}` })]);
  if (view.image_missing) parts.push(["Image", el("p", { class: "quiet small" }, LOST)]);
  if (view.board) parts.push(["Told in words", boardPicture(view.board)]);
  if (!parts.length) return null;
  return el(
    "div",
    { class: "pictures" },
    parts.map(([name, shown]) =>
      el("figure", {}, parts.length > 1 && el("figcaption", {}, name), shown),
    ),
  );
}

function isPictured(view) {
  return Boolean(view.board || view.images?.length || view.image_missing);
}

// What the agent saw: as a picture where there is one, and always as the text it read.
function viewOf(view, label) {
  const text = textBox(view.text, label);
  const pictures = picturesOf(view, label);
  if (!pictures) return text;
  return el("div", { class: "stack" }, pictures, el("details", {}, el("summary", {}, "As text"), text));
}
