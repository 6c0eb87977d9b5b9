// The profile as typed arrays.

/** Running sums modulo 2**32, in units of `scale`. */
function accumulate(differences, scale) {
  const values = new Float64Array(differences.length);
  let sum = 0;
  for (let i = 0; i < differences.length; i++) {
    sum = (sum + differences[i]) >>> 0;
    values[i] = sum * scale;
  }
  return values;
}

/** Gives each of the table's parts (lanes or memories) its slice of the rows. */
function placeRows(parts) {
  let first = 0;
  for (const part of parts) {
    part.first = first;
    first += part.rows;
  }
}

async function readProfile() {
  const profile = JSON.parse(document.getElementById("profile").textContent);
  const packed = fromBase64(document.getElementById("columns").textContent.trim());
  const columns = cutColumns(await inflate(packed), profile.layout);
  const tick = profile.tick_ns;
  const start = accumulate(columns.start, tick);
  const rows = start.length;
  const end = new Float64Array(rows);
  const wait = new Float64Array(rows);
  const blocker = new Int32Array(rows);
  for (let row = 0; row < rows; row++) {
    end[row] = start[row] + columns.length[row] * tick;
    wait[row] = columns.wait[row] * tick;
    blocker[row] = columns.blocker[row] === 0 ? -1 : row - columns.blocker[row];
  }
  const lane = new Uint8Array(rows);
  placeRows(profile.lanes);
  profile.lanes.forEach((l, number) => lane.fill(number, l.first, l.first + l.rows));
  placeRows(profile.memories);
  profile.kinds = profile.kinds.map(([name, operands, bytes, flops, file, line, slices, flow]) => ({
    name, operands, bytes, flops, file, line, slices, flow,
    writes: /\] (\w+)/.exec(operands)?.[1] ?? "", // the memory of its first operand
  }));
  const { kind, label, why, loop, change, owner } = columns;
  const depths = profile.layout.filter(([name]) => /^iteration\d+$/.test(name)).length;
  const iterations = Array.from({ length: depths }, (_, depth) => Int32Array.from(accumulateWhole(columns[`iteration${depth}`])));
  const begins = profile.layout.filter(([name]) => name.startsWith("begin")).map(([name]) => accumulateWhole(columns[name]));
  const moment = accumulate(columns.moment, tick);
  return { ...profile, rows, start, end, wait, blocker, lane, kind, label, why, loop, iterations, begins, moment, change, owner };
}
