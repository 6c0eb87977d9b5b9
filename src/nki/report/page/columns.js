// Columns of numbers that travel inside a page. See packed.py for how they were made.

const COLUMN_TYPES = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array, float32: Float32Array };

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

/** Running sums modulo 2**32. */
function accumulateWhole(differences) {
  const values = new Uint32Array(differences.length);
  for (let i = 0, sum = 0; i < differences.length; i++) values[i] = sum += differences[i];
  return values;
}
