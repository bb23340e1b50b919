// The retrieval matrix: each trace under each prompt. Every cell opens the texts behind it.

const ROWS_AT_ONCE = 64;

const matrixPart = {
  id: "retrieval",
  title: "Retrieval matrix",
  has: (run) => run.scores.length > 0,
  data: (run) => [run.scores],
  build: (run) =>
    redrawnPart(
      run,
      {
        id: "retrieval",
        title: "Retrieval matrix",
        words:
          "Does a reasoning trace fit its own prompt best? Open a cell to read the reasoning, its own prompt, and the prompt it fits as well.",
        frame: card,
      },
      (current, draw) => {
        const chosen = chosenScores(current, "scores");
        const place = el("div", { class: "stack" });
        whenLoaded(place, chosen.block, (block) => matrixView(block, 0));
        const words = `${plural(chosen.num_traces, "reasoning")}, ${plural(chosen.num_prompts, "prompt")}; retrieval ${num(chosen.accuracy)}, chance ${num(chosen.chance)}`;
        return [
          scoresChooser(current, "scores", draw, "matrix-step", el("span", { class: "quiet" }, words)),
          noteList(chosen.note ? [chosen.note] : []),
          place,
        ];
      },
    ),
};

// Which score matrix is looked at; also where the words behind it are.
function scoresChooser(run, section, draw, key, ...beside) {
  const keyOf = (one) => `${one.step} ${one.scope}`;
  const options = run.scores.map((one) => [keyOf(one), one.label]);
  const chosen = keyOf(chosenScores(run, section));
  return chooser(run, section, draw, { label: "measured at", options, chosen, key }, ...beside);
}

// Rows by their own prompt, so that grounded reasoning shows as a staircase.
function matrixView(block, page) {
  const order = block.owner_N.map((_, n) => n).sort((a, b) => block.owner_N[a] - block.owner_N[b] || a - b);
  const rows = order.slice(page * ROWS_AT_ONCE, (page + 1) * ROWS_AT_ONCE);
  const depth = colourDepth(block);
  const grid = el(
    "div",
    {
      class: "matrix",
      role: "grid",
      "aria-label": "Reasonings (rows) under prompts (columns)",
      style: `--columns: ${block.prompts.length}; --cell: ${block.prompts.length > 24 ? ".8rem" : "1.5rem"}`,
      onkeydown: (event) => walkGrid(event, grid),
      "aria-rowcount": block.owner_N.length + 1,
      "aria-colcount": block.prompts.length + 2,
    },
    el(
      "div",
      { role: "row" },
      el("span", { role: "columnheader" }, "reasoning ↓ prompt →"),
      block.prompts.map((prompt, p) =>
        el(
          "span",
          { role: "columnheader", class: "column", title: prompt.label },
          block.prompts.length > 24 ? (p % 5 ? "" : String(p + 1)) : String(p + 1),
        ),
      ),
      el("span", { role: "columnheader" }, "best fit"),
    ),
    rows.map((n, i) => matrixRow(block, n, depth, i > 0 && block.owner_N[rows[i - 1]] !== block.owner_N[n])),
  );
  const first = grid.querySelector(".cell");
  if (first) first.tabIndex = 0;
  const out = el(
    "div",
    { class: "stack" },
    matrixKeys(depth),
    el("div", { class: "scroll" }, grid),
    matrixPages(block, page, order.length),
  );
  return out;
}

function matrixRow(block, n, depth, startsGroup) {
  const own = block.owner_N[n];
  const best = bestPrompt(block, n);
  const hit = best === own;
  return el(
    "div",
    { role: "row", class: startsGroup ? "group-start" : null },
    el("span", { role: "rowheader", title: block.traces[n].label }, block.traces[n].label),
    block.prompts.map((_, p) => matrixCell(block, n, p, best, depth)),
    el(
      "span",
      { role: "gridcell", class: `outcome ${hit ? "" : "miss"}` },
      hit ? "✓ own" : `✕ fits ${best + 1}`,
    ),
  );
}

function matrixCell(block, n, p, best, depth) {
  const gap = gapToBest(block, n, p, best);
  const share = gap === null ? null : 1 - Math.min(1, gap / depth);
  const isOwn = block.owner_N[n] === p;
  const words = gap === null ? "not scored" : `${num(perToken(block, n, p))} nats per token`;
  const name = `${block.traces[n].label}, prompt ${p + 1} (${block.prompts[p].label})${isOwn ? ", its own" : ""}${best === p ? ", best fit" : ""}: ${words}`;
  return el("button", {
    type: "button",
    role: "gridcell",
    tabindex: -1,
    class: `cell ${isOwn ? "own" : ""} ${best === p ? "best" : ""} ${gap === null ? "none" : ""}`,
    style:
      share === null
        ? null
        : `--heat: color-mix(in oklab, var(--heat1) ${Math.round(100 * share)}%, var(--heat0)); --mark: ${share > 0.5 ? "var(--paper)" : "var(--ink)"}`,
    "aria-label": name,
    title: name,
    "data-cell": `${n},${p}`,
    onclick: () => openCell(block, n, p),
  });
}

function matrixKeys(depth) {
  const box = (style) =>
    el("span", {
      style: `display: inline-block; width: 1.1rem; height: .9rem; border-radius: 2px; background: var(--heat1); position: relative; ${style}`,
    });
  return el(
    "ul",
    { class: "keys" },
    el("li", {}, `≥ ${num(depth)}`, el("span", { class: "scale" }), "0 nats per token below the best fit"),
    el("li", {}, box("background: var(--heat0); box-shadow: inset 0 0 0 2px var(--ink)"), "its own prompt"),
    el(
      "li",
      {},
      el("span", {
        style:
          "display: inline-block; width: .55rem; height: .55rem; border-radius: 50%; background: var(--ink)",
      }),
      "the prompt it fits best",
    ),
    el("li", {}, "arrow keys move, Enter opens"),
  );
}

function matrixPages(block, page, count) {
  const pages = Math.ceil(count / ROWS_AT_ONCE);
  if (pages < 2) return null;
  const go = (next) => (event) => {
    const place = event.target.closest(".stack").parentNode;
    place.replaceChildren(matrixView(block, next));
    place.querySelector("[data-key=matrix-next]").focus();
  };
  return el(
    "div",
    { class: "controls" },
    button("Previous", go(page - 1), { disabled: page === 0 }),
    el(
      "span",
      {},
      `traces ${page * ROWS_AT_ONCE + 1} to ${Math.min(count, (page + 1) * ROWS_AT_ONCE)} of ${count}`,
    ),
    button("Next", go(page + 1), { disabled: page === pages - 1, "data-key": "matrix-next" }),
  );
}

function perToken(block, n, p) {
  const value = block.logp_NP[n][p];
  return isNumber(value) ? value / Math.max(1, block.length_N[n]) : null;
}

function bestPrompt(block, n, except = -1) {
  let best = -1;
  block.logp_NP[n].forEach((value, p) => {
    if (p !== except && isNumber(value) && (best < 0 || value > block.logp_NP[n][best])) best = p;
  });
  return best;
}

function gapToBest(block, n, p, best) {
  const value = perToken(block, n, p);
  return value === null || best < 0 ? null : perToken(block, n, best) - value;
}

// The colour scale ends where nine tenths of the gaps do, so that one odd cell does not bleach the rest.
function colourDepth(block) {
  const gaps = block.logp_NP
    .flatMap((row, n) => {
      const best = bestPrompt(block, n);
      return row.map((_, p) => gapToBest(block, n, p, best));
    })
    .filter((gap) => gap > 0)
    .sort((a, b) => a - b);
  return gaps.length ? Math.max(gaps[Math.floor(0.9 * (gaps.length - 1))], 1e-6) : 1;
}

function walkGrid(event, grid) {
  const cell = event.target.closest(".cell");
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  if (!cell || !(event.key in moves)) return;
  event.preventDefault();
  const rows = [...grid.querySelectorAll("[role=row]")]
    .slice(1)
    .map((row) => [...row.querySelectorAll(".cell")]);
  const r = rows.findIndex((row) => row.includes(cell));
  const c = rows[r].indexOf(cell);
  const next = rows[r + moves[event.key][0]]?.[c + moves[event.key][1]];
  if (!next) return;
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
