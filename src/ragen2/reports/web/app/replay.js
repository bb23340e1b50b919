// Episodes, turn by turn: what the agent saw, what it thought, what it did, what it got.

const replayPart = {
  id: "replays",
  title: "Replays",
  has: (run) => run.replays.length > 0,
  data: (run) => [run.replays],
  build: (run) =>
    redrawnPart(
      run,
      {
        id: "replays",
        title: "Replays",
        words: "What the agent saw, thought and did. Arrow keys step through an episode.",
        frame: card,
      },
      (current, draw) => {
        const chosen = choice(current, "replays", current.replays, (one) => String(one.step));
        const place = el("div");
        whenLoaded(place, chosen.block, (block) =>
          el("div", { class: "stack" }, problemList(block), episodeBrowser(current, block.episodes)),
        );
        const options = current.replays.map((one) => [one.step, `step ${one.step}`]);
        const words =
          chosen.count < chosen.of
            ? `${chosen.count} of ${num(chosen.of)} episodes are in this page`
            : plural(chosen.count, "episode");
        return [
          chooser(
            current,
            "replays",
            draw,
            { label: "step", options, chosen: chosen.step, key: "replay-step" },
            el("span", { class: "quiet" }, words),
          ),
          place,
        ];
      },
    ),
};

// What was wrong with replies that could not be executed as written, with examples.
function problemList(block) {
  const wrong = (block.problems || []).reduce((sum, one) => sum + one.count, 0);
  if (!wrong) return null;
  return el(
    "details",
    { class: "problems", "data-key": "replay-problems" },
    el("summary", {}, `${num(wrong)} of ${num(block.replies)} replies could not be executed as written`),
    el(
      "ul",
      {},
      block.problems.map((one) =>
        el(
          "li",
          {},
          el("strong", {}, num(one.count)),
          ` ${one.kind}`,
          one.examples.map((text) => textBox(text, "Example of such a reply")),
        ),
      ),
    ),
  );
}

function outcome(episode) {
  if (episode.error) return ["bad", "environment error"];
  if (episode.solved === null || episode.solved === undefined)
    return ["unknown", episode.stop ? sentence(episode.stop) : "ended"];
  return episode.solved ? ["good", "solved"] : ["fair", "not solved"];
}

function episodeBrowser(run, episodes) {
  const list = el("ul", { class: "episodes", "aria-label": "Episodes" });
  const scene = el("div");
  const wanted = el(
    "select",
    { "data-key": "replay-filter", onchange: () => fillList() },
    [
      ["all", "all episodes"],
      ["solved", "solved"],
      ["unsolved", "not solved"],
      ["kept", "kept by the filter"],
      ["dropped", "dropped by the filter"],
    ].map(([value, text]) => el("option", { value }, text)),
  );
  const passes = {
    all: () => true,
    solved: (one) => one.solved === true,
    unsolved: (one) => one.solved === false,
    kept: (one) => one.kept === true,
    dropped: (one) => one.kept === false,
  };

  function show(i) {
    choose(run, "episode", i);
    for (const item of list.querySelectorAll("button"))
      item.setAttribute("aria-current", String(Number(item.dataset.episode) === i));
    scene.replaceChildren(episodePlayer(episodes[i]));
  }

  function fillList() {
    const found = episodes
      .map((episode, i) => [episode, i])
      .filter(([episode]) => passes[wanted.value](episode));
    list.replaceChildren(
      ...found.map(([episode, i]) =>
        el(
          "li",
          {},
          episodeButton(episode, i, () => show(i)),
        ),
      ),
    );
    if (!found.length) {
      list.replaceChildren(el("li", { class: "quiet" }, "None."));
      scene.replaceChildren();
      return;
    }
    const before = state.chosen[`${run.id}/episode`];
    show(found.some(([, i]) => i === before) ? before : found[0][1]);
  }

  fillList();
  return el(
    "div",
    { class: "replay" },
    el(
      "div",
      { class: "stack", style: "align-content: start" },
      el("div", { class: "controls" }, labelled("show", wanted)),
      list,
    ),
    scene,
  );
}

function episodeButton(episode, i, onclick) {
  const [tone, word] = outcome(episode);
  return el(
    "button",
    { type: "button", "data-episode": i, onclick },
    el("span", { class: `tone-${tone}`, style: "color: var(--tone)" }, icon(tone)),
    el("span", {}, episode.label, el("span", { class: "unseen" }, `, ${word}`)),
    el("span", { class: "quiet small" }, signed(episode.reward)),
  );
}

function episodePlayer(episode) {
  const frames = episode.turns.length + (episode.end ? 1 : 0);
  let at = 0;
  const [tone, word] = outcome(episode);
  const count = el("strong", { "aria-live": "polite" });
  const stage = el("div");
  const back = button("◀ Back", () => go(at - 1), { "aria-label": "Turn before", "data-key": "replay-back" });
  const next = button("Next ▶", () => go(at + 1), { "aria-label": "Next turn", "data-key": "replay-next" });
  const slider = el("input", {
    type: "range",
    min: 0,
    max: Math.max(0, frames - 1),
    value: 0,
    "aria-label": "Turn",
    "data-key": "replay-turn",
    oninput: () => go(Number(slider.value)),
  });

  function go(to) {
    at = Math.max(0, Math.min(frames - 1, to));
    const isEnd = at >= episode.turns.length;
    count.textContent = frames
      ? isEnd
        ? "The end"
        : `Turn ${at + 1} of ${episode.turns.length}`
      : "No turns";
    // A disabled button would lose the keyboard's place, so it only says that it does nothing.
    back.setAttribute("aria-disabled", String(at === 0));
    next.setAttribute("aria-disabled", String(at >= frames - 1));
    slider.value = at;
    slider.setAttribute("aria-valuetext", count.textContent);
    stage.replaceChildren(
      !frames
        ? el("p", { class: "quiet" }, "This episode has no turns.")
        : isEnd
          ? endScene(episode)
          : turnScene(episode.turns[at], at),
    );
  }

  function walk(event) {
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: frames - 1 };
    if (!(event.key in moves) || event.target === slider || event.altKey || event.ctrlKey || event.metaKey)
      return;
    event.preventDefault();
    go(moves[event.key]);
  }

  go(0);
  return el(
    "div",
    {
      class: "player",
      tabindex: 0,
      role: "group",
      "aria-label": `Replay of ${episode.label}; arrow keys step`,
      onkeydown: walk,
      "data-key": "replay-player",
    },
    el(
      "div",
      { class: "chips", style: "margin-bottom: .6rem" },
      badge(tone, word),
      el("span", { class: "chip" }, episode.env),
      el("span", { class: "chip" }, `return ${signed(episode.reward)}`),
      episode.stop && el("span", { class: "chip" }, `stopped: ${sentence(episode.stop)}`),
      typeof episode.kept === "boolean" &&
        el("span", { class: "chip" }, episode.kept ? "kept by the filter" : "dropped by the filter"),
    ),
    el("div", { class: "stepper" }, back, slider, next, count),
    stage,
    episode.error &&
      el("details", {}, el("summary", {}, "Error of the environment"), textBox(episode.error, "Error")),
    episode.system &&
      el(
        "details",
        { style: "margin-top: .8rem" },
        el("summary", {}, "Instructions to the agent"),
        textBox(episode.system, "Instructions"),
      ),
  );
}

function turnScene(turn, i) {
  return el(
    "div",
    { class: `scene ${isPictured(turn.seen) ? "" : "text"}` },
    el(
      "div",
      { class: "said-by" },
      el("h3", { class: "minor" }, "Saw"),
      viewOf(turn.seen, `What the agent saw at turn ${i + 1}`),
    ),
    el(
      "div",
      { class: "stack" },
      el(
        "div",
        { class: "said-by" },
        el("h3", { class: "minor" }, "Thought"),
        textBox(turn.reasoning, "Reasoning", "said"),
      ),
      (turn.tools || []).map((tool) =>
        el(
          "details",
          { open: true },
          el("summary", {}, `Tool ${tool.name}`),
          textBox(tool.input, `Input of ${tool.name}`),
          textBox(tool.output, `Output of ${tool.name}`),
        ),
      ),
      el("div", { class: "said-by" }, el("h3", { class: "minor" }, "Did"), actionList(turn)),
      el(
        "p",
        {},
        el("span", { class: "quiet" }, "Got "),
        el("strong", {}, signed(turn.reward)),
        turn.penalty
          ? el("span", { class: "quiet" }, `, format penalty ${signed(-Math.abs(turn.penalty))}`)
          : null,
      ),
      turn.raw && el("details", {}, el("summary", {}, "Whole reply"), textBox(turn.raw, "Whole reply")),
    ),
  );
}

function actionList(turn) {
  const acts = turn.actions.map((action, i) => {
    const fate = (turn.fates || [])[i] || "taken";
    const isUsed = fate === "taken" || fate === "without effect";
    return el("span", { class: `act ${isUsed ? "" : "unused"}` }, action, fate !== "taken" && ` (${fate})`);
  });
  return el(
    "div",
    { class: "acts" },
    acts.length ? acts : el("span", { class: "quiet" }, "nothing"),
    turn.valid ? null : badge("fair", turn.problem ? `invalid: ${turn.problem}` : "invalid"),
  );
}

function endScene(episode) {
  const [tone, word] = outcome(episode);
  return el(
    "div",
    { class: `scene ${isPictured(episode.end) ? "" : "text"}` },
    el(
      "div",
      { class: "said-by" },
      el("h3", { class: "minor" }, "At the end"),
      viewOf(episode.end, "The last view"),
    ),
    el(
      "div",
      { class: "stack" },
      el("p", {}, badge(tone, word)),
      el(
        "p",
        {},
        `${plural(episode.turns.length, "turn")}, return ${signed(episode.reward)}${episode.stop ? `; stopped: ${sentence(episode.stop)}` : ""}.`,
      ),
    ),
  );
}
