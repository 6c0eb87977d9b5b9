// Of a page that `nki show --serve` serves: the values that it does not hold in full.

const ASK_MS = 150; // not for every step that the slider passes
const KEPT_ANSWERS = 512; // maps

class LiveViewer extends Viewer {
  async operands() {
    await super.operands();
    clearTimeout(this.asking);
    const { at } = this;
    this.asking = setTimeout(async () => (await askValues(this.run, at)) && this.at === at && super.operands(), ASK_MS);
  }
}

/** Asks the server for the operands of a step that the page does not hold in full; false if there is nothing more. */
async function askValues(run, step) {
  const missing = [...run.operandsOf(step)].some((operand) => run.role[operand] <= WRITES && !run.mapOf(operand)?.exact);
  if (!missing || run.failsAt(step)) return false;
  const answer = await fetch(`values/${step + 1}`);
  if (!answer.ok) return false;
  (await answer.json()).forEach(({ width, down, across, figures, cells }, i) => {
    const numbers = new Float64Array(fromBase64(figures).buffer);
    const known = Object.fromEntries(FIGURES.map((name, at) => [name, numbers[at]]));
    const read = readCells(fromBase64(cells).buffer, 0, width, down * across);
    run.answers.set(run.first[step] + i, { ...known, down, across, exact: true, cells: async () => read });
  });
  while (run.answers.size > KEPT_ANSWERS) run.answers.delete(run.answers.keys().next().value);
  return true;
}
