// Start: colours, then the data that the page holds, or the server's.

applyTheme();
window.ragen2Report = {
  update,
  state,
  get charts() {
    return [...charts].filter((one) => one.node.isConnected);
  },
};

if (isLive) {
  // The cookie has the access token from here on; in the address others could read it.
  history.replaceState(null, "", location.pathname + location.hash);
  followServer();
} else {
  update(JSON.parse(document.getElementById("report-data").textContent));
  document.documentElement.dataset.ready = "true";
}
