// What the reader has chosen. It outlives a redraw, so a live page does not jump.

const state = {
  view: null, // "compare" or the id of a run
  range: [null, null], // steps shown by the curves
  picked: {}, // run id -> metrics of the explorer
  chosen: {}, // "run id/section" -> chosen item; absent: the newest
};

function choice(run, section, among, keyOf) {
  const key = state.chosen[`${run.id}/${section}`];
  return among.find((one) => keyOf(one) === key) ?? among[among.length - 1];
}

// Score matrices: the newest of the first turn, which a run is judged by, unless the reader chose another.
function chosenScores(run, section) {
  const main = run.scores.filter((one) => one.scope === "first_turn");
  const keyOf = (one) => `${one.step} ${one.scope}`;
  const key = state.chosen[`${run.id}/${section}`];
  return (
    run.scores.find((one) => keyOf(one) === key) ?? main[main.length - 1] ?? run.scores[run.scores.length - 1]
  );
}

function choose(run, section, key) {
  state.chosen[`${run.id}/${section}`] = key;
}

// Draw an element's content again, and leave the keyboard's place where it was.
function redraw(place, ...children) {
  const at = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  place.replaceChildren(...children.flat().filter(Boolean));
  if (at) [...place.querySelectorAll("[data-key]")].find((one) => one.dataset.key === at)?.focus();
}

// A section that is drawn again when its reader chooses something, and when its run has new data.
function redrawnPart(run, { id, title, words, frame = (body) => body }, contents) {
  let current = run;
  const body = el("div", { class: "stack" });
  const draw = () => redraw(body, ...contents(current, draw));
  draw();
  const node = part(id, title, words, frame(body));
  node.refresh = (next) => {
    current = next;
    draw();
  };
  return node;
}

// Which of several measurements a section shows, and what is said beside it.
function chooser(run, section, draw, { label, options, chosen, key }, ...beside) {
  const pick = (value) => {
    choose(run, section, value);
    draw();
  };
  const control = selectOf(options, chosen, pick, { "data-key": key });
  return el("div", { class: "controls" }, labelled(label, control), ...beside);
}
