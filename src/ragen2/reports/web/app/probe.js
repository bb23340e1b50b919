// The gradient probe: which part of the loss pulls on prompts with little and with much reward variance.

const NORMS = { task: "task, as trained", centred: "task, centred returns", kl: "KL", entropy: "entropy" };
const COSINES = { task_kl: "cos task·KL", task_entropy: "cos task·entropy", kl_entropy: "cos KL·entropy" };

const probePart = {
  id: "probe",
  title: "Gradient probe",
  has: (run) => run.probes.length > 0,
  data: (run) => [run.probes],
  build(run) {
    let current = run;
    const head = el("div", { class: "stack" });
    const grid = el("div", { class: "grid two" });
    const below = el("div");
    const cards = {};
    const draw = () => {
      const probe = choice(current, "probe", current.probes, (one) => String(one.step));
      redraw(
        head,
        el(
          "div",
          { class: "controls" },
          labelled(
            "probed at",
            selectOf(
              current.probes.map((one) => [one.step, `step ${one.step}`]),
              probe.step,
              (key) => {
                choose(current, "probe", key);
                draw();
              },
              { "data-key": "probe-step" },
            ),
          ),
        ),
        probe.text && el("p", {}, probe.text),
        probe.readings?.length
          ? el(
              "ul",
              { class: "small quiet" },
              probe.readings.map((line) => el("li", {}, line)),
            )
          : null,
      );
      for (const [name, spec] of Object.entries({
        norms: normSpec(current, probe),
        bound: boundSpec(current, probe),
      })) {
        if (spec && cards[name]) cards[name].refresh(spec);
        else if (spec) grid.append((cards[name] = new ChartCard(spec)).node);
        else if (cards[name]) {
          cards[name].node.remove();
          delete cards[name];
        }
      }
      redraw(below, probeTable(probe));
    };
    draw();
    const node = part(
      "probe",
      "Gradient probe",
      "The gradient of each part of the loss, by buckets of prompts from low to high reward variance.",
      el("div", { class: "stack" }, head, grid, below),
    );
    node.refresh = (next) => {
      current = next;
      draw();
    };
    return node;
  },
};

function bucketName({ name }) {
  return name.replace(/^bucket_/, "");
}

function normSpec(run, probe) {
  const buckets = probe.buckets.filter((bucket) => bucket.name !== "all");
  const parts = Object.keys(NORMS).filter((name) => buckets.some((bucket) => isNumber(bucket.norms[name])));
  const look = (i) => ({ mark: SYMBOLS[i], colour: seriesColour(i) });
  if (!parts.length) return null;
  return {
    id: `chart-${run.id}-probe-norms`,
    title: "Gradient norm by bucket",
    unit: "norm",
    kind: "probe",
    keys: () => parts.map((name, i) => ({ name: NORMS[name], ...look(i) })),
    describe: parts
      .map((name) => `${NORMS[name]}: ${buckets.map((bucket) => num(bucket.norms[name])).join(", ")}.`)
      .join(" "),
    option: () => ({
      grid: plotGrid({ bottom: 26 }),
      yAxis: valueAxis({ scale: false }),
      xAxis: categoryAxis(buckets.map(bucketName), "bucket, low to high reward variance"),
      tooltip: tooltip("axis", (params) => {
        const bucket = buckets[params[0].dataIndex];
        return tip(
          `bucket ${bucketName(bucket)}, RV ${num(bucket.variance)}`,
          parts.map((name, i) => ({ key: look(i), name: NORMS[name], value: num(bucket.norms[name]) })),
          isNumber(bucket.snr) ? [`SNR ${num(bucket.snr)}`] : [],
        );
      }),
      series: parts.map((name, i) => ({
        type: "line",
        name: NORMS[name],
        data: buckets.map((bucket) => bucket.norms[name] ?? null),
        symbol: look(i).mark,
        symbolSize: 8,
        color: look(i).colour,
        lineStyle: { width: 2 },
        emphasis: { disabled: true },
      })),
    }),
    numbers: () => probeNumbers(probe),
    stops: () =>
      buckets.map((bucket, index) => ({
        series: 0,
        index,
        text: `bucket ${bucketName(bucket)}: ${parts.map((name) => `${NORMS[name]} ${num(bucket.norms[name])}`).join(", ")}`,
      })),
  };
}

function boundSpec(run, probe) {
  const prompts = (probe.prompts || []).filter((one) => isNumber(one.norm));
  if (!prompts.length) return null;
  const bounds = [...prompts].filter((one) => isNumber(one.bound)).sort((a, b) => a.variance - b.variance);
  return {
    id: `chart-${run.id}-probe-bound`,
    title: "Policy gradient of each prompt",
    unit: "norm, tokens summed",
    kind: "probe",
    keys: () => [
      { name: "policy gradient", mark: "dot:circle", colour: seriesColour(0) },
      { name: "its bound", mark: "dot:emptyCircle", colour: colours.quiet },
    ],
    describe: `${prompts.filter((one) => !isNumber(one.bound) || one.norm <= one.bound * (1 + 1e-6)).length} of ${prompts.length} prompts are inside their bound.`,
    option: () => ({
      grid: plotGrid({ bottom: 26 }),
      xAxis: valueAxis({
        scale: false,
        name: "√RV, root of the prompt's reward variance",
        nameLocation: "middle",
        nameGap: 26,
      }),
      yAxis: valueAxis({ scale: false }),
      tooltip: tooltip("item", (params) => {
        const one = (params.seriesIndex ? bounds : prompts)[params.dataIndex];
        return tip(`seed ${one.seed}`, [
          { name: "RV", value: num(one.variance) },
          { name: "norm", value: num(one.norm) },
          { name: "bound", value: num(one.bound) },
        ]);
      }),
      series: [
        {
          type: "scatter",
          data: prompts.map((one) => [Math.sqrt(one.variance), one.norm]),
          symbolSize: 8,
          color: seriesColour(0),
        },
        {
          type: "scatter",
          data: bounds.map((one) => [Math.sqrt(one.variance), one.bound]),
          symbol: "emptyCircle",
          symbolSize: 7,
          color: colours.quiet,
        },
      ],
    }),
    numbers: () => ({
      heads: [
        ["seed", "num"],
        ["RV", "num"],
        ["norm", "num"],
        ["bound", "num"],
      ],
      rows: prompts.map((one) => [String(one.seed), num(one.variance), num(one.norm), num(one.bound)]),
    }),
    stops: () =>
      prompts.map((one, index) => ({
        series: 0,
        index,
        text: `seed ${one.seed}: norm ${num(one.norm)}, bound ${num(one.bound)}`,
      })),
  };
}

function probeNumbers(probe) {
  const has = (field, name) => probe.buckets.some((bucket) => isNumber(bucket[field]?.[name]));
  const norms = Object.keys(NORMS).filter((name) => has("norms", name));
  const cosines = Object.keys(COSINES).filter((name) => has("cosines", name));
  return {
    heads: [
      "bucket",
      ["mean RV", "num"],
      ["prompts", "num"],
      ...norms.map((name) => [NORMS[name], "num"]),
      ["SNR", "num"],
      ...cosines.map((name) => [COSINES[name], "num"]),
    ],
    rows: probe.buckets.map((bucket) => [
      bucketName(bucket),
      num(bucket.variance),
      num(bucket.prompts),
      ...norms.map((name) => num(bucket.norms[name])),
      num(bucket.snr),
      ...cosines.map((name) => signed(bucket.cosines?.[name])),
    ]),
  };
}

function probeTable(probe) {
  const { heads, rows } = probeNumbers(probe);
  return card(
    el("h3", {}, "By bucket"),
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Gradients by bucket" },
      table(heads, rows, "Gradients by bucket"),
    ),
    el(
      "p",
      { class: "quiet small" },
      "SNR: squared length of the mean policy gradient over its variance; pure noise gives 1. Norms are without coefficients.",
    ),
  );
}
