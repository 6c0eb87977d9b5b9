// The profile as typed arrays. See packed.py for how the columns were made.

const COLUMN_TYPES = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array };

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function cutColumns(buffer, layout) {
  const columns = {};
  let offset = 0;
  for (const [name, type, length] of layout) {
    const size = COLUMN_TYPES[type].BYTES_PER_ELEMENT * length;
    columns[name] = new COLUMN_TYPES[type](buffer.slice(offset, offset + size));
    offset += size;
  }
  return columns;
}

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

/** Running sums modulo 2**32. */
function accumulateWhole(differences) {
  const values = new Uint32Array(differences.length);
  for (let i = 0, sum = 0; i < differences.length; i++) values[i] = sum += differences[i];
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
  const depths = profile.layout.filter(([name]) => /^turn\d+$/.test(name)).length;
  const turns = Array.from({ length: depths }, (_, depth) => Int32Array.from(accumulateWhole(columns[`turn${depth}`])));
  const begins = profile.layout.filter(([name]) => name.startsWith("begin")).map(([name]) => accumulateWhole(columns[name]));
  const moment = accumulate(columns.moment, tick);
  return { ...profile, rows, start, end, wait, blocker, lane, kind, label, why, loop, turns, begins, moment, change, owner };
}
