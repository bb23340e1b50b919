// Heavy parts of the data: unpacked when they are first needed, then kept.

const unpacked = new Map();
const isLive = document.documentElement.dataset.mode === "live";

function loadBlock(name) {
  if (!unpacked.has(name)) {
    const loading = isLive ? askForBlock(name) : unpackBlock(name);
    loading.catch(() => unpacked.delete(name)); // so that it can be tried again
    unpacked.set(name, loading);
  }
  return unpacked.get(name);
}

// A resumed run does steps again, so a block of the same name may have changed with new data.
function forgetBlocks() {
  unpacked.clear();
}

async function unpackBlock(name) {
  const held = [...document.querySelectorAll("script.block")].find((one) => one.dataset.name === name);
  if (!held) throw new Error(`this page holds no block ${name}`);
  const packed = Uint8Array.from(atob(held.textContent), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function askForBlock(name) {
  const answer = await fetch(serverAddress("block.json", { name }), { cache: "no-store" });
  if (!answer.ok) throw new Error(`the server has no block ${name} (${answer.status})`);
  return answer.json();
}

// Relative; the access token goes along in the cookie that the page came with.
function serverAddress(path, query) {
  return `${path}?${new URLSearchParams(query)}`;
}

// Show what a block gives, or why it cannot be had. A slower answer never replaces a newer question's.
function whenLoaded(place, name, show) {
  place.dataset.block = name;
  if (!place.hasChildNodes()) place.append(el("p", { class: "quiet" }, "Loading."));
  const settle = (make) => {
    if (place.dataset.block === name) place.replaceChildren(make());
  };
  return loadBlock(name).then(
    (block) => settle(() => show(block)),
    (error) => settle(() => el("p", { role: "alert" }, `This part could not be loaded: ${error.message}`)),
  );
}
