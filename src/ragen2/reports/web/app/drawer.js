// What is behind a cell: one trace, its own prompt, and the prompt it fits as well.

function openDrawer(title, ...children) {
  const from = document.activeElement;
  const dialog = el(
    "dialog",
    { class: "drawer", "aria-labelledby": "drawer-title" },
    el(
      "div",
      { class: "bar-top" },
      el("h2", { id: "drawer-title" }, title),
      button("Close", () => dialog.close(), { autofocus: true }),
    ),
    el("div", { class: "body" }, ...children),
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    from?.focus();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function openCell(block, n, p) {
  const own = block.owner_N[n];
  const other = p === own ? bestPrompt(block, n, own) : p;
  const trace = block.traces[n];
  const [ownMiddle, otherMiddle] =
    other < 0 ? [null, null] : differing(block.prompts[own].text, block.prompts[other].text);
  openDrawer(
    `Reasoning of ${trace.label}`,
    el("p", {}, cellReading(block, n, own, other)),
    el(
      "div",
      { class: "said-by" },
      el("h3", {}, `Reasoning (${plural(block.length_N[n], "token")})`),
      textBox(trace.text, "Reasoning", "said"),
      trace.action && el("p", {}, el("span", { class: "quiet" }, "then did: "), trace.action),
    ),
    el(
      "div",
      { class: "pair" },
      promptBox(block, n, own, "Its own prompt", ownMiddle),
      other >= 0 &&
        promptBox(
          block,
          n,
          other,
          p === own ? "The prompt it fits next best" : "The prompt of this cell",
          otherMiddle,
        ),
    ),
    otherBest(block, n, own, other),
    el("div", {}, el("h3", {}, "Under every prompt"), allPrompts(block, n)),
  );
}

// When the opened cell is not the one that fits best, that one is worth reading too.
function otherBest(block, n, own, other) {
  const best = bestPrompt(block, n, own);
  if (best < 0 || best === other) return null;
  return el(
    "div",
    { class: "pair" },
    promptBox(
      block,
      n,
      best,
      "The other prompt it fits best",
      differing(block.prompts[own].text, block.prompts[best].text)[1],
    ),
  );
}

function cellReading(block, n, own, other) {
  const mine = perToken(block, n, own);
  const theirs = other < 0 ? null : perToken(block, n, other);
  if (mine === null || theirs === null) return "Not scored under both prompts.";
  const gap = mine - theirs;
  if (gap === 0)
    return "It is exactly as likely under both prompts: it says nothing about which one it answers.";
  const [better, worse] =
    gap > 0 ? ["its own prompt", `prompt ${other + 1}`] : [`prompt ${other + 1}`, "its own prompt"];
  const times = Math.abs(block.logp_NP[n][own] - block.logp_NP[n][other]);
  const factor = times < 15 ? `${num(Math.exp(times))} times as likely` : `e^${num(times)} times as likely`;
  return `It fits ${better} better than ${worse}: by ${num(Math.abs(gap))} nats per token, as a whole ${factor}.`;
}

function promptBox(block, n, p, title, middle) {
  const prompt = block.prompts[p];
  return el(
    "div",
    { class: "said-by" },
    el("h3", {}, title),
    el(
      "p",
      { class: "quiet small" },
      `prompt ${p + 1}, ${prompt.label}: ${num(perToken(block, n, p))} nats per token, ${num(block.logp_NP[n][p])} in all`,
    ),
    picturesOf(prompt, title),
    el("pre", { tabindex: 0, role: "region", "aria-label": title }, marked(prompt.text, middle)),
  );
}

function allPrompts(block, n) {
  const best = bestPrompt(block, n);
  const order = block.prompts
    .map((_, p) => p)
    .sort((a, b) => (block.logp_NP[n][b] ?? -Infinity) - (block.logp_NP[n][a] ?? -Infinity));
  const worst = Math.max(...order.map((p) => gapToBest(block, n, p, best) ?? 0), 1e-9);
  const rows = order.map((p) => {
    const gap = gapToBest(block, n, p, best);
    const share = gap === null ? 0 : Math.round(100 * (1 - (0.96 * gap) / worst));
    return [
      `${p + 1}`,
      block.prompts[p].label + (p === block.owner_N[n] ? " (its own)" : ""),
      num(perToken(block, n, p)),
      num(block.logp_NP[n][p]),
      num(gap),
      el(
        "span",
        { class: "track", "aria-hidden": "true" },
        el("span", { class: "bar", style: `width: ${share}%` }),
      ),
    ];
  });
  return scrolling(
    "Log-probabilities under every prompt",
    table(
      [
        ["prompt", "num"],
        "name",
        ["nats per token", "num"],
        ["in all", "num"],
        ["below the best", "num"],
        "fit",
      ],
      rows,
      "Log-probabilities of this trace",
    ),
  );
}

function textBox(text, label, kind = "pre") {
  const shown = text || "(empty)";
  return kind === "said"
    ? el(
        "div",
        { class: "said", tabindex: 0, role: "region", "aria-label": label, style: "white-space: pre-wrap" },
        shown,
      )
    : el("pre", { tabindex: 0, role: "region", "aria-label": label }, shown);
}

// Where two texts differ, without the words they share at both ends.
function differing(a, b) {
  const words = (text) => text.split(/(\s+)/);
  const [left, right] = [words(a), words(b)];
  let start = 0;
  while (start < Math.min(left.length, right.length) && left[start] === right[start]) start += 1;
  let end = 0;
  while (
    end < Math.min(left.length, right.length) - start &&
    left[left.length - 1 - end] === right[right.length - 1 - end]
  )
    end += 1;
  const span = (list) => [
    list.slice(0, start).join("").length,
    list.slice(0, list.length - end).join("").length,
  ];
  return [span(left), span(right)];
}

function marked(text, span) {
  if (!span || span[0] >= span[1]) return [text];
  return [text.slice(0, span[0]), el("mark", {}, text.slice(...span)), text.slice(span[1])];
}
