// A page that is served asks its server for newer data, again and again, also after the server was away.

const live = { since: null, everyS: 1, isLost: false, checked: null };

function liveWords() {
  if (!isLive) return "";
  if (live.isLost) return "○ connection lost, trying again";
  return live.checked ? "● live" : "○ connecting";
}

async function askForData() {
  const answer = await fetch(serverAddress("data.json", live.since === null ? {} : { since: live.since }), {
    cache: "no-store",
  });
  if (answer.status === 204) return null;
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.json();
}

async function followServer() {
  let data = null;
  try {
    data = await askForData();
    live.isLost = false;
    live.checked = true;
  } catch (error) {
    live.isLost = true;
    console.info(`ragen2: ${error.message}`);
  }
  if (data) {
    live.since = data.live?.since ?? null;
    live.everyS = data.live?.every_s ?? 1;
    forgetBlocks();
    update(data);
    document.documentElement.dataset.ready = "true";
  }
  const place = document.getElementById("live");
  if (place && place.textContent !== liveWords()) place.textContent = liveWords();
  setTimeout(followServer, 1000 * (live.isLost ? Math.max(1, live.everyS) : live.everyS));
}
