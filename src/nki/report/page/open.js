// Opens the page.

async function main() {
  const begun = performance.now();
  const run = await Run.read();
  const decoded = performance.now();
  window.viewer = new (run.live ? LiveViewer : Viewer)(run);
  viewer.milliseconds = { decode: decoded - begun, build: performance.now() - decoded, drawn: performance.now() };
  document.documentElement.dataset.ready = "yes";
}

main().catch((problem) => {
  byId("what").textContent = `The run could not be read: ${problem.message}`;
  throw problem;
});
