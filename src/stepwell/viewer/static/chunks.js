// The steps of an episode in a browser's memory: fetched in chunks, pictures decoded ahead, within limits.
//
// A source is {run(key) -> about, chunk(key, start, count, signal) -> ArrayBuffer}. The viewer has one over
// HTTP, a static page has one over scripts that lie beside it.

const ARRAYS = {
  "<f4": Float32Array, "<f8": Float64Array, "<u1": Uint8Array, "<i1": Int8Array, "<u2": Uint16Array,
  "<i2": Int16Array, "<u4": Uint32Array, "<i4": Int32Array, "<u8": BigUint64Array, "<i8": BigInt64Array,
};
const REQUESTS = 2; // at once; browsers allow six to a host, and pages need some
const DECODING = 8; // pictures at once
const CHUNK_BYTES = 64 << 20;
const PICTURE_BYTES = 128 << 20;
const RETRY_MS = 1000;
const FIRST_STEPS = 2; // of a place that was jumped to: what is seen comes before what follows

export function httpSource(base, store) {
  const address = (name, given) => `${base}/data/${store}/${name}?${new URLSearchParams(given)}`;
  const answer = async (name, given, signal) => {
    let found;
    try {
      found = await fetch(address(name, given), { signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("the viewer does not answer"); // what a browser says of it differs
    }
    if (found.ok) return found;
    const text = (await found.text()).trim();
    let sentence = text;
    try {
      sentence = JSON.parse(text).error ?? text;
    } catch {
      // a proxy's page, as it is
    }
    throw new Error(sentence.slice(0, 1000) || `the viewer answered ${found.status}`);
  };
  return {
    run: async (key) => (await answer("run", { key })).json(),
    chunk: async (key, start, count, signal) => (await answer("chunk", { key, start, count }, signal)).arrayBuffer(),
    json: async (name, given) => (await answer(name, given)).json(),
    thumb: (key) => address("thumb", { key }),
  };
}

// A chunk is the length of a JSON header (u32), the header, zeros up to a multiple of 8, and the parts.
export function parseChunk(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const base = 4 + length + (-(4 + length) & 7);
  const parts = new Map();
  for (const about of header.parts ?? []) {
    const at = base + about.offset;
    if (about.type === "array") {
      const Kind = ARRAYS[about.dtype.replace("|", "<")];
      const values = new Kind(buffer, at, about.bytes / Kind.BYTES_PER_ELEMENT);
      parts.set(about.name, { values, width: header.count ? values.length / header.count : 0 });
    } else {
      const places = [at];
      for (const each of about.lengths) places.push(places.at(-1) + each);
      parts.set(about.name, { type: about.type, places });
    }
  }
  return { ...header, parts, buffer };
}

export class Steps {
  // `pictures` are the names of fields to decode; `onready` is called when something new is there.
  constructor(source, key, about, pictures, { onready, onerror }) {
    Object.assign(this, { key, about, pictures, _source: source, _onready: onready, _onerror: onerror });
    this.size = Math.max(1, about.chunk || 1);
    this._chunks = new Map(); // by first step, the one that was used longest ago first
    this._first = null; // a few steps of the place that was jumped to last
    this._requests = new Map();
    this._decoded = new Map(); // by step: {name: ImageBitmap, or null where there is none}
    this._decoding = new Set();
    this._bytes = this._pictureBytes = 0;
    this._stepBytes = 1 << 16;
    this._focus = { step: 0, stride: 1, ahead: this.size };
    this._waitUntil = 0;
    this._closed = false;
  }

  // What is shown now, and how many steps will be soon, every `stride` of them; none while one
  // looks for a place.
  focus(step, stride, ahead) {
    this._focus = { step, stride, ahead };
    this._pump();
  }

  ready(step) {
    if (this._chunkOf(step) === undefined) return false;
    return this.pictures.length === 0 || this._decoded.has(step);
  }

  // Values of a field in a step, as a view into an array; undefined where there are none.
  values(step, name) {
    const chunk = this._chunkOf(step);
    const part = chunk?.parts.get(name);
    if (part?.values === undefined) return undefined;
    const at = (step - chunk.start) * part.width;
    return part.values.subarray(at, at + part.width);
  }

  value(step, name) {
    const found = this.values(step, name);
    return found?.length ? Number(found[0]) : undefined;
  }

  text(step, name) {
    const chunk = this._chunkOf(step);
    const part = chunk?.parts.get(name);
    if (part?.type !== "text") return undefined;
    const [from, to] = [part.places[step - chunk.start], part.places[step - chunk.start + 1]];
    return new TextDecoder().decode(new Uint8Array(chunk.buffer, from, to - from));
  }

  picture(step, name) {
    return this._decoded.get(step)?.[name] ?? null;
  }

  // What is wrong with a step, if anything is.
  damage(step) {
    const chunk = this._chunkOf(step);
    if (!chunk?.damage) return null;
    return !chunk.missing || chunk.missing.includes(step - chunk.start) ? chunk.damage : null;
  }

  // Ranges of steps that are here, and ranges with damage, for the scrubber.
  ranges() {
    const chunks = [...this._chunks.values()];
    const missing = (chunk) => (chunk.damage ? (chunk.missing ?? []) : []).map((at) => [chunk.start + at, chunk.start + at + 1]);
    return { loaded: chunks.map((chunk) => [chunk.start, chunk.start + chunk.count]), damaged: chunks.flatMap(missing) };
  }

  decode(names) {
    if (names.join("\n") === this.pictures.join("\n")) return;
    this.pictures = names;
    this._dropPictures(() => true);
    this._pump();
  }

  // More steps have been recorded.
  grow(about) {
    for (const [start, chunk] of this._chunks) {
      if (chunk.count === this.size) continue;
      this._chunks.delete(start);
      this._bytes -= chunk.buffer.byteLength;
    }
    this.about = about;
    this._pump();
  }

  close() {
    this._closed = true;
    for (const request of this._requests.values()) request.abort();
    clearTimeout(this._timer);
    this._dropPictures(() => true);
    this._chunks.clear();
    this._first = null;
  }

  _startOf(step) {
    return step - (step % this.size);
  }

  _chunkOf(step) {
    const chunk = this._chunks.get(this._startOf(step));
    if (chunk !== undefined) return step < chunk.start + chunk.count ? chunk : undefined;
    const first = this._first;
    return first && first.start <= step && step < first.start + first.count ? first : undefined;
  }

  _pump() {
    if (this._closed) return;
    this._fetchAhead();
    this._decodeAhead();
  }

  _wanted() {
    const { step, ahead } = this._focus;
    const wanted = [];
    if (ahead === 0) return wanted;
    const end = Math.min(step + ahead, this.about.steps - 1);
    for (let start = this._startOf(step); start <= end; start += this.size) wanted.push(start);
    return wanted.slice(0, Math.max(2, Math.ceil(1024 / this.size)));
  }

  _fetchAhead() {
    const now = performance.now();
    if (now < this._waitUntil || this.about.steps === 0) return;
    const wanted = this._wanted();
    const { step } = this._focus;
    for (const [name, request] of this._requests) {
      if (name === "first" ? this._chunkOf(step) || request.step !== step : !wanted.includes(name)) request.abort();
    }
    if (!this._chunkOf(step) && !this._requests.has("first")) {
      const count = Math.min(FIRST_STEPS, this.about.steps - step);
      if (count < this.size || wanted.length === 0) this._fetch("first", step, count);
    }
    if (this._requests.has("first")) return;
    for (const start of wanted) {
      if (this._requests.size >= REQUESTS) break;
      if (!this._chunks.has(start) && !this._requests.has(start)) this._fetch(start, start, this.size);
    }
  }

  async _fetch(name, start, count) {
    const request = new AbortController();
    request.step = start;
    this._requests.set(name, request);
    try {
      const chunk = parseChunk(await this._source.chunk(this.key, start, count, request.signal));
      if (this._closed) return;
      if (chunk.count === 0) throw new Error(`expected steps from ${start} on, got none`);
      if (name === "first") this._first = chunk;
      else this._keep(start, chunk);
    } catch (error) {
      if (this._closed || error.name === "AbortError") return;
      this._waitUntil = performance.now() + RETRY_MS;
      this._timer = setTimeout(() => this._pump(), RETRY_MS + 1);
      this._onerror(error);
      return;
    } finally {
      if (this._requests.get(name) === request) this._requests.delete(name);
      if (!this._closed && request.signal.aborted) queueMicrotask(() => this._pump());
    }
    this._onready();
    this._pump();
  }

  _keep(start, chunk) {
    this._chunks.set(start, chunk);
    this._bytes += chunk.buffer.byteLength;
    const wanted = new Set(this._wanted());
    for (const [each, old] of this._chunks) {
      if (this._bytes <= CHUNK_BYTES) break;
      if (wanted.has(each)) continue;
      this._chunks.delete(each);
      this._bytes -= old.buffer.byteLength;
    }
  }

  _decodeAhead() {
    if (this.pictures.length === 0) return;
    const { step, stride, ahead } = this._focus;
    const room = Math.max(4, Math.floor((PICTURE_BYTES * 0.6) / this._stepBytes));
    const end = this.about.steps - 1;
    const last = Math.min(step + Math.min(ahead, room * stride), end);
    for (let each = step; each <= last; each += stride) if (!this._decodeSoon(each)) return;
    if (last === end) this._decodeSoon(end); // which is shown at any stride
  }

  // Returns whether the next one can follow. What is to be seen now does not wait for its turn.
  _decodeSoon(step) {
    if (this._decoded.has(step) || this._decoding.has(step)) return true;
    if (this._decoding.size >= DECODING && step !== this._focus.step) return false;
    const chunk = this._chunkOf(step);
    if (chunk !== undefined) this._decode(step, chunk, this.pictures);
    return chunk !== undefined;
  }

  async _decode(step, chunk, names) {
    this._decoding.add(step);
    const found = {};
    await Promise.all(names.map(async (name) => (found[name] = await pictureOf(chunk, step, name))));
    this._decoding.delete(step);
    if (this._closed || names !== this.pictures) {
      close(found);
      return;
    }
    this._decoded.set(step, found);
    this._pictureBytes += bytesOf(found);
    this._stepBytes = Math.max(bytesOf(found), 1);
    if (this._pictureBytes > PICTURE_BYTES) this._dropFar();
    this._onready(step);
    this._decodeAhead();
  }

  // Pictures behind the one that is shown go first, then those that are far ahead.
  _dropFar() {
    const { step } = this._focus;
    const far = (each) => (each < step ? (step - each) * 4 : each - step);
    const steps = [...this._decoded.keys()].sort((a, b) => far(b) - far(a));
    const dropped = new Set();
    let bytes = this._pictureBytes;
    for (const each of steps) {
      if (bytes <= PICTURE_BYTES * 0.8 || each === step) break;
      bytes -= bytesOf(this._decoded.get(each));
      dropped.add(each);
    }
    this._dropPictures((each) => dropped.has(each));
  }

  _dropPictures(test) {
    for (const [step, found] of this._decoded) {
      if (!test(step)) continue;
      this._decoded.delete(step);
      this._pictureBytes -= bytesOf(found);
      close(found);
    }
  }
}

async function pictureOf(chunk, step, name) {
  const part = chunk.parts.get(name);
  if (part?.type !== "png") return null;
  const [from, to] = [part.places[step - chunk.start], part.places[step - chunk.start + 1]];
  if (from === to) return null;
  const blob = new Blob([new Uint8Array(chunk.buffer, from, to - from)], { type: "image/png" });
  try {
    return await createImageBitmap(blob, { premultiplyAlpha: "none", colorSpaceConversion: "none" });
  } catch {
    return null; // a picture that cannot be decoded is shown as one that is not there
  }
}

function bytesOf(found) {
  return Object.values(found).reduce((sum, each) => sum + (each ? each.width * each.height * 4 : 64), 0);
}

function close(found) {
  for (const each of Object.values(found)) each?.close();
}
