// The page's frame: head, tabs of runs, list of sections, and which sections are drawn anew.

const RUN_PARTS = [
  verdictPart,
  planePart,
  curvesPart,
  matrixPart,
  wordsPart,
  flowPart,
  rewardPart,
  probePart,
  replayPart,
  timingsPart,
  auditPart,
  settingsPart,
];
const COMPARE_PARTS = [tablePart, overlayPart, pathsPart, correlationPart];
const shown = { data: null, view: null, parts: new Map() };

function viewsOf(data) {
  return [...(data.compare ? [["compare", "Compare"]] : []), ...data.runs.map((run) => [run.id, run.name])];
}

function update(data) {
  if (data.schema !== 1) throw new Error(`this page reads data of schema 1, not ${data.schema}`);
  if (shown.data && isRewound(shown.data, data)) unpacked.clear();
  const isFirst = shown.data === null;
  shown.data = data;
  document.title = `${data.title} · ragen2`;
  if (!viewsOf(data).some(([id]) => id === state.view)) state.view = viewsOf(data)[0][0];
  drawHead(data);
  drawView();
  document
    .getElementById("foot")
    .replaceChildren(el("p", {}, `Made by ragen2 ${data.version}, ${data.generated}.`));
  if (isFirst && location.hash.length > 1)
    document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

// A resumed run may take back steps: what was unpacked of them is no longer true.
function isRewound(before, after) {
  const last = (run) => run.steps[run.steps.length - 1] ?? -1;
  return before.runs.some((run) => {
    const now = after.runs.find((one) => one.id === run.id);
    return !now || last(now) < last(run);
  });
}

function drawHead(data) {
  const views = viewsOf(data);
  const tabs =
    views.length > 1
      ? el(
          "div",
          { class: "tabs", role: "tablist", "aria-label": "Runs", onkeydown: walkTabs },
          views.map(([id, name]) =>
            el(
              "button",
              {
                type: "button",
                role: "tab",
                id: `tab-${id}`,
                "data-key": `tab-${id}`,
                "aria-selected": String(id === state.view),
                "aria-controls": "content",
                tabindex: id === state.view ? 0 : -1,
                onclick: () => showView(id),
              },
              name,
            ),
          ),
        )
      : null;
  redraw(
    document.getElementById("top"),
    el(
      "div",
      { class: "title" },
      el("span", { class: "brand" }, "ragen2"),
      el("h1", { class: tabs && "unseen" }, data.title),
    ),
    tabs,
    el(
      "div",
      { class: "tools" },
      el("span", { id: "live", class: "small quiet" }, liveWords()),
      button(
        isDark() ? "Light" : "Dark",
        () => {
          toggleTheme();
          drawHead(shown.data);
        },
        { "data-key": "theme", "aria-label": isDark() ? "Light colours" : "Dark colours" },
      ),
    ),
  );
  const content = document.getElementById("content");
  if (tabs) fill(content, { role: "tabpanel", "aria-labelledby": `tab-${state.view}` }, []);
}

function walkTabs(event) {
  const views = viewsOf(shown.data).map(([id]) => id);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  showView(views[(views.indexOf(state.view) + step + views.length) % views.length]);
  document.getElementById(`tab-${state.view}`).focus();
}

function showView(id) {
  state.view = id;
  state.range = [null, null];
  drawHead(shown.data);
  drawView();
  scrollTo({ top: 0 });
}

// A section is drawn anew only when its own data changed; one that can, takes the new data in place.
function drawView() {
  const { data } = shown;
  const isCompare = state.view === "compare";
  const subject = isCompare ? data : data.runs.find((run) => run.id === state.view);
  const parts = (isCompare ? COMPARE_PARTS : RUN_PARTS).filter((one) => one.has(subject));
  if (shown.view !== state.view) {
    shown.view = state.view;
    shown.parts = new Map();
    document.getElementById("content").replaceChildren(...[noteList(data.notes)].filter(Boolean));
  }
  const content = document.getElementById("content");
  for (const [id, { node }] of shown.parts)
    if (!parts.some((one) => one.id === id)) {
      node.remove();
      shown.parts.delete(id);
    }
  let before = content.querySelector(":scope > .notes");
  for (const one of parts) {
    const node = drawPart(one, subject);
    if (before ? before.nextSibling !== node : content.firstChild !== node)
      before ? before.after(node) : content.prepend(node);
    before = node;
  }
  drawSections(parts);
  sweepCharts();
}

function drawPart(one, subject) {
  const signature = JSON.stringify(one.data(subject));
  const old = shown.parts.get(one.id);
  if (old && old.signature === signature) return old.node;
  if (old && old.node.refresh) old.node.refresh(subject);
  const node = old && old.node.refresh ? old.node : one.build(subject);
  if (old && old.node !== node) old.node.replaceWith(node);
  shown.parts.set(one.id, { node, signature });
  return node;
}

function drawSections(parts) {
  const nav = document.getElementById("sections");
  if (
    [...nav.querySelectorAll("a")].map((link) => link.hash.slice(1)).join() ===
    parts.map((one) => one.id).join()
  )
    return;
  redraw(
    nav,
    el(
      "ul",
      {},
      parts.map((one) =>
        el("li", {}, el("a", { href: `#${one.id}`, "data-key": `nav-${one.id}` }, one.title)),
      ),
    ),
  );
  reading.disconnect();
  for (const { node } of shown.parts.values()) reading.observe(node);
}

const reading = new IntersectionObserver(
  (entries) => {
    const entry = entries.find((one) => one.isIntersecting);
    if (!entry) return;
    for (const link of document.querySelectorAll("#sections a"))
      link.setAttribute("aria-current", String(link.hash === `#${entry.target.id}`));
  },
  { rootMargin: "-15% 0px -70% 0px" },
);

theme.listeners.push(() => {
  if (shown.data && shown.view === "compare") {
    shown.parts.delete("overview");
    shown.view = null;
    drawView();
  }
});
