// What there is to learn from: reward variance over prompts, what the filter kept, and why prompts are flat.

const TRIAGE = {
  live: ["good", "live"],
  too_easy: ["unknown", "too easy"],
  too_hard: ["fair", "too hard"],
  reward_blind: ["bad", "reward-blind"],
  unclear: ["unknown", "unclear"],
};
const BINS = 12;

const rewardPart = {
  id: "reward",
  title: "Reward variance",
  has: (run) =>
    Boolean(run.reward?.steps.length) ||
    Boolean(run.reward?.triage.length) ||
    drawable(run).some(isRewardChart),
  data: (run) => [run.reward, run.steps, run.metrics, run.charts, run.events],
  build(run) {
    let current = run;
    const grid = el("div", { class: "grid" });
    const below = el("div", { class: "stack", style: "margin-top: 1rem" });
    const cards = new Map();
    const put = (spec) => {
      if (cards.has(spec.id)) cards.get(spec.id).refresh(spec);
      else {
        cards.set(spec.id, new ChartCard(spec));
        grid.append(cards.get(spec.id).node);
      }
    };
    const control = el("div", { class: "controls" });
    const draw = () => {
      if (current.reward?.steps.length) {
        put(histogramSpec(current));
        redraw(control, stepControl(current, draw));
      }
      for (const chart of drawable(current).filter(isRewardChart)) put(runCurveSpec(current, chart));
      redraw(below, noteList(current.reward?.note ? [current.reward.note] : []), triageExamples(current));
    };
    draw();
    const node = part(
      "reward",
      "Reward variance",
      "Prompts whose plays all earn the same teach nothing. The filter keeps those that differ.",
      el("div", { class: "stack" }, control, grid),
      below,
    );
    node.refresh = (next) => {
      current = next;
      draw();
    };
    return node;
  },
};

function shownRewards(run) {
  return state.chosen[`${run.id}/reward`] === "all"
    ? run.reward.steps
    : [choice(run, "reward", run.reward.steps, (one) => String(one.step))];
}

function stepControl(run, draw) {
  const isAll = state.chosen[`${run.id}/reward`] === "all";
  const steps = run.reward.steps;
  const at = isAll ? steps.length - 1 : steps.indexOf(shownRewards(run)[0]);
  const pick = (i) => {
    choose(run, "reward", String(steps[i].step));
    draw();
  };
  return [
    labelled(
      isAll ? "all steps" : `histogram of step ${steps[at].step}`,
      el("input", {
        type: "range",
        min: 0,
        max: steps.length - 1,
        value: at,
        "data-key": "reward-step",
        "aria-valuetext": isAll ? "all steps" : `step ${steps[at].step}`,
        disabled: steps.length < 2,
        oninput: (event) => pick(Number(event.target.value)),
      }),
    ),
    button(
      "All steps",
      () => {
        choose(run, "reward", isAll ? "" : "all");
        draw();
      },
      { "aria-pressed": String(isAll), "data-key": "reward-all" },
    ),
  ];
}

function histogramSpec(run) {
  const shown = shownRewards(run);
  const bins = histogram(shown);
  const title =
    shown.length === 1
      ? `Prompts by ${run.reward.signal}, step ${shown[0].step}`
      : `Prompts by ${run.reward.signal}, all ${shown.length} steps`;
  const kinds = [
    ["kept", () => colours.series[0]],
    ["dropped", () => colours.series[1]],
  ];
  const counts = kinds.map(([kind]) => bins.reduce((sum, bin) => sum + bin[kind], 0));
  return {
    id: `chart-${run.id}-histogram`,
    title,
    unit: "prompts",
    kind: "histogram",
    keys: () =>
      kinds.map(([kind, colour], i) => ({
        name: `${kind} by the filter: ${num(counts[i])}`,
        mark: "area",
        colour: colour(),
        pattern: kind === "dropped",
      })),
    describe: `${counts[0]} kept, ${counts[1]} dropped; ${bins[0].kept + bins[0].dropped} at 0.`,
    option: () => ({
      aria: striped(),
      grid: plotGrid({ bottom: 26 }),
      xAxis: categoryAxis(
        bins.map((bin) => bin.name),
        run.reward.signal,
      ),
      yAxis: valueAxis({ scale: false, minInterval: 1 }),
      tooltip: tooltip("axis", (params) => binTip(bins[params[0].dataIndex], kinds)),
      series: kinds.map(([kind, colour]) => ({
        type: "bar",
        name: kind,
        stack: "all",
        barCategoryGap: "12%",
        data: bins.map((bin) => bin[kind]),
        color: colour(),
      })),
    }),
    numbers: () => ({
      heads: [run.reward.signal, ["kept", "num"], ["dropped", "num"]],
      rows: bins.map((bin) => [bin.range, num(bin.kept), num(bin.dropped)]),
    }),
    stops: () =>
      bins.map((bin, index) => ({
        series: 0,
        index,
        text: `${bin.range}: ${bin.kept} kept, ${bin.dropped} dropped`,
      })),
  };
}

function binTip(bin, kinds) {
  return tip(
    bin.range,
    kinds.map(([kind, colour]) => ({
      key: { mark: "area", colour: colour(), pattern: kind === "dropped" },
      name: kind,
      value: num(bin[kind]),
    })),
  );
}

// Zero has a bin of its own: these prompts are dead, not merely quiet.
function histogram(steps) {
  const all = steps.flatMap((one) => one.scores.map((score, i) => ({ score, kept: one.kept[i] !== false })));
  const low = Math.min(0, ...all.map((one) => one.score));
  const high = Math.max(...all.map((one) => one.score), 0);
  const width = (high - low) / BINS || 1;
  const bins = [
    { name: "0", range: "exactly 0", kept: 0, dropped: 0 },
    ...Array.from({ length: high > low ? BINS : 0 }, (_, i) => ({
      name: num(low + (i + 0.5) * width, 2),
      range: `${num(low + i * width)} to ${num(low + (i + 1) * width)}`,
      kept: 0,
      dropped: 0,
    })),
  ];
  for (const { score, kept } of all) {
    const bin = score === 0 ? bins[0] : bins[1 + Math.min(BINS - 1, Math.floor((score - low) / width))];
    bin[kept ? "kept" : "dropped"] += 1;
  }
  return bins;
}

// Charts of the run that belong beside the histogram: how uneven, how much kept, why flat.
function isRewardChart(chart) {
  return chart.series.every(
    ({ metric }) =>
      /^(filter|triage)\//.test(metric) || metric.endsWith("std_over_mean") || metric === "reward/dead_ratio",
  );
}

function triageExamples(run) {
  const found = run.reward?.triage || [];
  if (!found.length) return null;
  return card(
    el("h3", {}, "Triage: examples"),
    scrolling(
      "Triage examples",
      found.map((one) =>
        el(
          "details",
          {},
          el(
            "summary",
            {},
            `step ${one.step}, ${one.name}: ${TRIAGE[one.label]?.[1] || sentence(one.label)}`,
          ),
          el(
            "div",
            { class: "stack", style: "padding: .3rem 0 .8rem" },
            el(
              "p",
              {},
              badge(TRIAGE[one.label]?.[0] || "unknown", TRIAGE[one.label]?.[1] || sentence(one.label)),
              " ",
              one.reason,
            ),
            one.examples.map((text) => el("pre", {}, text)),
          ),
        ),
      ),
    ),
  );
}
