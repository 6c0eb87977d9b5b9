// Where stepping stops: lines, and conditions on values; and which steps a search finds.

class Breakpoints {
  constructor(run) {
    this.run = run;
    this.lines = new Set(); // "file:line"
    this.tolerance = 1;
    const writesNaN = (operand, map) => (run.role[operand] === WRITES || run.role[operand] === ADDS_TO) && run.map_nans[map] > 0;
    const readsUnwritten = (operand, map) => run.role[operand] === READS && run.map_unwritten[map] > 0;
    this.conditions = {
      nan: { name: "NaN", title: "Steps that write a NaN", on: true, steps: run.stepsWith(writesNaN) },
      unwritten: { name: "never written", title: "Steps that read elements which were never written", on: true, steps: run.stepsWith(readsUnwritten) },
      error: { name: "error", title: "The step that raises", on: true, steps: Uint8Array.from({ length: run.steps }, (_, step) => +run.failsAt(step)) },
      difference: { name: "difference", title: "Steps whose part of a result differs from the reference by more than this many times what its dtype and sums allow", on: true, steps: new Uint8Array(run.steps) },
    };
    this.setTolerance(1);
  }

  setTolerance(tolerance) {
    this.tolerance = tolerance;
    const { steps } = this.conditions.difference;
    for (let step = 0; step < steps.length; step++) steps[step] = +(this.run.error[step] > tolerance);
  }

  toggle(key) {
    if (!this.lines.delete(key)) this.lines.add(key);
    return this.lines.has(key);
  }

  /** Why a step stops: the names of its conditions, or its line. */
  reasons(step) {
    const found = Object.values(this.conditions).filter(({ on, steps }) => on && steps[step]).map(({ name }) => name);
    const { file, line } = this.run.kindOf(step);
    return this.lines.has(`${file}:${line}`) ? [...found, this.run.place(step)] : found;
  }

  /** The next step (by 1 or -1) that stops; -1 for none. */
  next(at, by) {
    const kinds = this.run.kinds.map(({ file, line }) => this.lines.has(`${file}:${line}`));
    const conditions = Object.values(this.conditions).filter(({ on }) => on);
    for (let step = at + by; step >= 0 && step < this.run.steps; step += by) {
      if (kinds[this.run.kind[step]] || conditions.some(({ steps }) => steps[step])) return step;
    }
    return -1;
  }
}

/** The steps that match every word: in an instruction, engine, line or tile, or `k=3` among the loops. */
function searchSteps(run, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  const tests = words.map((word) => searchWord(run, word));
  for (let step = 0; step < run.steps && words.length; step++) {
    if (tests.every((test) => test(step))) found.push(step);
  }
  return found;
}

function searchWord(run, word) {
  const kinds = run.kinds.map(({ name, engine, file, line }) =>
    `${name}\n${engine}\n${file < 0 ? "" : `${run.files[file].name}:${line}`}`.toLowerCase().includes(word));
  const labels = run.labels.map((label) => label.toLowerCase().includes(word));
  const [, variable, value] = /^(\w+)=(.+)$/.exec(word) ?? [];
  const depths = run.loops.map((names) => names.findIndex((name) => name.toLowerCase() === variable));
  return (step) => {
    if (kinds[run.kind[step]]) return true;
    const depth = variable === undefined ? -1 : depths[run.loop[step]];
    if (depth >= 0 && String(iterationValue(run, depth, step)).toLowerCase() === value) return true;
    for (let i = run.first[step]; i < run.first[step + 1]; i++) if (labels[run.tile_label[run.tile[i]]]) return true;
    return false;
  };
}
