// Any metric of the run, up to four at once, beside the curves that are always drawn.

function metricExplorer(run) {
  let current = run;
  const place = el("div");
  const picked = () => (state.picked[current.id] ||= []);
  const find = el("input", {
    type: "search",
    placeholder: "part of a name",
    "data-key": "metric-find",
    oninput: () => list(),
  });
  const select = el("select", {
    "data-key": "metric-select",
    "aria-label": "Metric to add",
    onchange: () => add(select.value),
  });
  const log = el("input", { type: "checkbox", "data-key": "metric-log", onchange: () => draw() });
  const chips = el("div", { class: "chips" });
  let chart = null;
  const names = () =>
    Object.keys(current.metrics)
      .filter((name) => !/_(low|high)$/.test(name) || !(name.replace(/_(low|high)$/, "") in current.metrics))
      .sort();

  function list() {
    const wanted = find.value.trim().toLowerCase();
    const found = names().filter((name) => name.toLowerCase().includes(wanted));
    const groups = new Map();
    for (const name of found) {
      const family = name.includes("/") ? name.slice(0, name.lastIndexOf("/")) : "other";
      if (!groups.has(family)) groups.set(family, []);
      groups.get(family).push(name);
    }
    select.replaceChildren(
      el("option", { value: "" }, `${plural(found.length, "metric")}: choose one`),
      ...[...groups].map(([family, members]) =>
        el(
          "optgroup",
          { label: family },
          members.map((name) => el("option", { value: name }, name)),
        ),
      ),
    );
  }

  function add(name) {
    if (!name) return;
    state.picked[current.id] = [...picked().filter((one) => one !== name), name].slice(-4);
    select.value = "";
    draw();
  }

  function drop(name) {
    state.picked[current.id] = picked().filter((one) => one !== name);
    draw();
    select.focus();
  }

  function draw() {
    const shown = picked().filter((name) => name in current.metrics);
    chips.replaceChildren(
      ...shown.map((name) =>
        el(
          "button",
          { type: "button", class: "chip", "aria-label": `Remove ${name}`, onclick: () => drop(name) },
          `${name} ✕`,
        ),
      ),
    );
    if (!shown.length) {
      place.replaceChildren();
      chart?.dispose();
      chart = null;
      return;
    }
    const units = [...new Set(shown.map((name) => current.metrics[name].unit).filter(Boolean))];
    const spec = curveSpec({
      id: `chart-${current.id}-explorer`,
      title: "Chosen metrics",
      unit: units.join(" · "),
      steps: current.steps,
      events: current.events,
      logarithmic: log.checked,
      about: shown.length === 1 ? current.metrics[shown[0]].about : "",
      lines: shown.map((name, i) => ({ name, points: pointsOf(current, name), colour: i })),
    });
    if (chart) chart.refresh(spec);
    else {
      chart = new ChartCard({ ...spec, size: "tall" });
      place.replaceChildren(chart.node);
    }
  }

  const node = el(
    "div",
    { class: "card stack", style: "margin-top: 1rem" },
    el("h3", {}, "Any other metric"),
    el(
      "div",
      { class: "controls" },
      labelled("find", find),
      labelled("metric", select),
      el("label", { style: "display: flex; gap: .4rem; align-items: center" }, log, "logarithmic"),
      chips,
    ),
    place,
  );
  list();
  draw();
  return {
    node,
    refresh(next) {
      const isSame = names().join() === Object.keys(next.metrics).join();
      current = next;
      if (!isSame && document.activeElement !== select) list();
      draw();
    },
  };
}
