// Building the page. Text of models and environments only ever becomes a text node.

const SVG = "http://www.w3.org/2000/svg";

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(
    ...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return node;
}

function card(...children) {
  return el("div", { class: "card" }, ...children);
}

// heads: texts, or [text, "num"] for columns of numbers. rows: lists of texts or nodes.
function table(heads, rows, caption) {
  const kinds = heads.map((head) => (Array.isArray(head) ? head[1] : null));
  const cell = (value, i) =>
    i === 0 && kinds[0] !== "num" ? el("th", { scope: "row" }, value) : el("td", { class: kinds[i] }, value);
  return el(
    "table",
    {},
    caption && el("caption", { class: "unseen" }, caption),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        heads.map((head, i) =>
          el("th", { scope: "col", class: kinds[i] }, Array.isArray(head) ? head[0] : head),
        ),
      ),
    ),
    el(
      "tbody",
      {},
      rows.map((row) => el("tr", {}, row.map(cell))),
    ),
  );
}

// A box that scrolls must be reachable by keyboard.
function scrolling(label, ...children) {
  return el("div", { class: "scroll high", tabindex: 0, role: "region", "aria-label": label }, ...children);
}

function noteList(notes) {
  return notes && notes.length
    ? el(
        "ul",
        { class: "notes" },
        notes.map((note) => el("li", {}, note)),
      )
    : null;
}

function labelled(label, control) {
  return el("label", {}, label, control);
}

function selectOf(options, chosen, onchange, attributes = {}) {
  const control = el(
    "select",
    { ...attributes, onchange: () => onchange(control.value) },
    options.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen) }, text)),
  );
  return control;
}

function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", class: "button", onclick, ...attributes }, text);
}

// Shapes differ, so that a tone is clear without its colour.
const ICONS = {
  good: ["M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Z", "M4.6 8.2 7 10.6 11.6 5.6"],
  fair: ["M8 1.2 15.2 14.4H.8Z", "M8 6v4M8 11.8v.9"],
  bad: ["M5 1h6l4 4v6l-4 4H5l-4-4V5Z", "M5.3 5.3 10.7 10.7M10.7 5.3 5.3 10.7"],
  unknown: ["M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Z", "M5 8h6"],
};

function icon(tone) {
  const [shape, sign] = ICONS[tone] || ICONS.unknown;
  return svg(
    "svg",
    { viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
    svg("path", {
      d: shape,
      fill: "none",
      stroke: "currentColor",
      "stroke-width": 1.5,
      "stroke-linejoin": "round",
    }),
    svg("path", {
      d: sign,
      fill: "none",
      stroke: "currentColor",
      "stroke-width": 1.7,
      "stroke-linecap": "round",
    }),
  );
}

function badge(tone, text) {
  return el("span", { class: `badge tone-${known(tone)}` }, icon(tone), text);
}

function known(tone) {
  return ICONS[tone] ? tone : "unknown";
}

function announce(text) {
  document.getElementById("announce").textContent = text;
}

function part(id, title, about, ...children) {
  return el(
    "section",
    { class: "part", id, "aria-labelledby": `${id}-title` },
    el(
      "header",
      {},
      el("div", { class: "words" }, el("h2", { id: `${id}-title` }, title), about && el("p", {}, about)),
    ),
    ...children,
  );
}
