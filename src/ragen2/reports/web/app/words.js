// The wording behind the numbers: phrases that fit any prompt, and traces of different prompts that are alike.

const wordsPart = {
  id: "words",
  title: "Templates",
  has: (run) => run.scores.length > 0,
  data: (run) => [run.scores],
  build: (run) =>
    redrawnPart(
      run,
      { id: "words", title: "Templates", words: "What stands in the reasoning whatever the prompt is." },
      (current, draw) => {
        const place = el("div");
        whenLoaded(place, chosenScores(current, "words").block, (block) =>
          el("div", { class: "grid two" }, phraseList(block), nearestList(block)),
        );
        return [scoresChooser(current, "words", draw, "words-step"), place];
      },
    ),
};

function phraseList(block) {
  const phrases = block.phrases || [];
  const rows = phrases.map((one) => [
    el("q", {}, one.text),
    `${one.prompts} of ${one.of}`,
    el(
      "span",
      { class: "track", "aria-hidden": "true" },
      el("span", { class: "bar", style: `width: ${Math.round((100 * one.prompts) / Math.max(1, one.of))}%` }),
    ),
    `${one.traces} of ${one.of_traces}`,
  ]);
  return card(
    el("h3", {}, "Most templated phrases"),
    rows.length
      ? scrolling(
          "Most templated phrases",
          table(
            ["phrase", ["prompts", "num"], "share", ["traces", "num"]],
            rows,
            "Most templated phrases",
          ),
        )
      : el("p", { class: "quiet" }, "No phrase is shared by traces of most prompts."),
  );
}

function nearestList(block) {
  const pairs = block.nearest || [];
  const items = pairs.map((pair) =>
    el(
      "details",
      {},
      el(
        "summary",
        {},
        `${percent(pair.similarity)} alike: ${block.traces[pair.a].label} and ${block.traces[pair.b].label}`,
      ),
      el(
        "div",
        { class: "stack", style: "padding: .4rem 0 .8rem" },
        [pair.a, pair.b].map((n) =>
          el(
            "div",
            { class: "said-by" },
            el("h4", {}, `${block.traces[n].label}, prompt ${block.owner_N[n] + 1}`),
            textBox(block.traces[n].text, `Reasoning of ${block.traces[n].label}`, "said"),
          ),
        ),
      ),
    ),
  );
  if (items.length) items[0].open = true;
  return card(
    el("h3", {}, "Reasonings of different prompts, most alike first"),
    block.nearest_about && el("p", { class: "quiet small" }, block.nearest_about),
    items.length
      ? scrolling("Nearest traces", items)
      : el("p", { class: "quiet" }, "No two traces of different prompts are alike."),
  );
}
