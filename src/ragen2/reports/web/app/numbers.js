// Numbers as a reader wants them: three digits, no noise, a dash for what is not there.

const NONE = "–";

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function num(value, digits = 3) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size < 1e-12) return "0"; // what is left when equal numbers are subtracted
  if (size >= 1e6 || size < 1e-4) return value.toExponential(1).replace("e+", "e").replace("-", "−");
  if (Number.isInteger(value) || size >= 1000)
    return Math.round(value).toLocaleString("en-US").replace("-", "−");
  const places = Math.max(0, Math.min(6, digits - 1 - Math.floor(Math.log10(size))));
  const text = value.toFixed(size < 1 ? Math.max(places, 3) : places);
  return text.replace(/\.?0+$/, (zeros) => (text.includes(".") ? "" : zeros)).replace("-", "−");
}

function percent(value) {
  return isNumber(value) ? `${num(100 * value)}%` : NONE;
}

function signed(value) {
  return isNumber(value) && value > 0 ? `+${num(value)}` : num(value);
}

function interval(low, high) {
  return isNumber(low) && isNumber(high) ? `${num(low)} to ${num(high)}` : "";
}

function estimate(one) {
  if (!one || !isNumber(one.value)) return NONE;
  const range = interval(one.low, one.high);
  return num(one.value) + (range ? ` (${range})` : "");
}

function seconds(value) {
  if (!isNumber(value)) return NONE;
  if (value < 90) return `${num(value)} s`;
  return value < 5400 ? `${num(value / 60)} min` : `${num(value / 3600)} h`;
}

function plural(count, word) {
  return `${num(count)} ${word}${count === 1 ? "" : "s"}`;
}

function sentence(name) {
  return String(name).replaceAll("_", " ");
}

function median(values) {
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  const half = sorted.length >> 1;
  if (!sorted.length) return null;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// A number as a person types it into a step field; null when it is none.
function typedStep(text) {
  const value = Number.parseInt(text, 10);
  return Number.isFinite(value) ? value : null;
}

// At most so many of a list, evenly, with both ends.
function evenly(items, most) {
  if (items.length <= most) return items;
  return Array.from({ length: most }, (_, i) => items[Math.round((i * (items.length - 1)) / (most - 1))]);
}
