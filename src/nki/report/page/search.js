// Which bars match the search text, and other choices of bars: a 0 or 1 per row.

/** The rows for which `wanted(row)`. */
function rowsWhere(data, wanted) {
  const on = new Uint8Array(data.rows);
  for (let row = 0; row < on.length; row++) on[row] = wanted(row) ? 1 : 0;
  return on;
}

function countRows(on) {
  let count = 0;
  for (let row = 0; row < on.length; row++) count += on[row];
  return count;
}

/** Finds words in the names, operands, lines, labels and engines of bars, and `k=3` among their loops. */
class Search {
  constructor(data) {
    this.data = data;
  }

  /** What is searched, prepared at the first search. */
  get texts() {
    const { data } = this;
    return (this.made ||= {
      kinds: data.kinds.map((kind) => `${kind.name}\n${kind.operands}\n${placeText(data, kind)}`.toLowerCase()),
      labels: data.labels.map((label) => label.toLowerCase()),
      lanes: data.lanes.map((lane) => `${lane.name}\n${ENGINE_NAMES[lane.name]}`.toLowerCase()),
      loops: data.loops.map((names) => names.map((name) => name.toLowerCase())),
      iterations: data.loop_words.map((word) => word.toLowerCase()),
    });
  }

  /** The rows that match every word. */
  rows(words) {
    const on = new Uint8Array(this.data.rows).fill(1);
    for (const word of words) this.#keep(on, word);
    return on;
  }

  /** Drops the rows that one word does not match. */
  #keep(on, word) {
    const { kind, label, lane } = this.data;
    const has = (texts) => Uint8Array.from(texts, (text) => +text.includes(word));
    const [kinds, labels, lanes] = [has(this.texts.kinds), has(this.texts.labels), has(this.texts.lanes)];
    const inLoop = this.#iteration(word);
    for (let row = 0; row < on.length; row++) {
      if (on[row] && !(kinds[kind[row]] | labels[label[row]] | lanes[lane[row]]) && !inLoop?.(row)) on[row] = 0;
    }
  }

  /** For `k=3`: whether a row's loop over k is at 3; nothing for other words. */
  #iteration(word) {
    const [, name, value] = /^(\w+)=(.+)$/.exec(word) ?? [];
    if (name === undefined) return undefined;
    const { loop, iterations } = this.data;
    const depths = Int8Array.from(this.texts.loops, (names) => names.indexOf(name));
    const wanted = /^\d+$/.test(value) ? +value : -1 - this.texts.iterations.indexOf(value);
    return (row) => depths[loop[row]] >= 0 && iterations[depths[loop[row]]][row] === wanted;
  }
}
