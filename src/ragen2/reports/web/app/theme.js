// Light or dark: what the system asks for, until the reader says otherwise.

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const theme = { asked: rememberedTheme(), listeners: [] };

function rememberedTheme() {
  try {
    return localStorage.getItem("ragen2-theme");
  } catch {
    return null; // a browser may forbid storage to a file: then the choice lasts as long as the page
  }
}

function isDark() {
  return theme.asked ? theme.asked === "dark" : systemDark.matches;
}

function applyTheme(dark = isDark()) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  readColours();
  theme.listeners.forEach((listener) => listener());
}

function toggleTheme() {
  theme.asked = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("ragen2-theme", theme.asked);
  } catch {
    // As above.
  }
  applyTheme();
}

// What charts need, read from the style sheet so that there is one palette.
const colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of [
    "paper",
    "sunk",
    "ink",
    "quiet",
    "line",
    "grid",
    "accent",
    "good",
    "fair",
    "bad",
    "t0",
    "t1",
    "heat0",
    "heat1",
  ])
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  colours.series = Array.from({ length: 8 }, (_, i) => style.getPropertyValue(`--s${i + 1}`).trim());
}

function mix(from, to, share) {
  const channel = (text, i) => Number.parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  const parts = [0, 1, 2].map((i) =>
    Math.round(channel(from, i) + share * (channel(to, i) - channel(from, i))),
  );
  return `rgb(${parts.join(",")})`;
}

systemDark.addEventListener("change", () => applyTheme());
// Paper is white whatever the screen is.
addEventListener("beforeprint", () => applyTheme(false));
addEventListener("afterprint", () => applyTheme());
