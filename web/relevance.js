// Relevance maps: one byte a pair of tokens, from which everything about the pair follows.
//
//   code t in 1..255 (0: rejected)       t = 255 (1 - (1 - s) / r)
//   s = 1 - r (1 - t / 255)              similarity
//   a = (t / 255)^2                      Trim
//   m = (cos(pi d / w) + 1) / 2          Softmask at distance d = i - j; 1 when w is infinite
//   relevance = a m
//
// Maps of mixers without Trim store the weight itself: relevance = scale t / 255.
'use strict';

class RelevanceMap {
  /** `tile`: {layer, head, window, accept, nonzero, scale, codes}; `length`: T. */
  constructor(tile, length) {
    Object.assign(this, tile);
    this.length = length;
    this.span = tile.window === null ? length : Math.min(length, Math.ceil(tile.window));  // integer distances < w
    this.screening = tile.scale === undefined || tile.scale === null;
    this.softmask = Float32Array.from({length: this.span}, (_, distance) =>
      tile.window === null || !this.screening ? 1 : (Math.cos(Math.PI * distance / tile.window) + 1) / 2);
  }

  /** T x T codes, row = query. Runs of zeros come as 0, run length. */
  get grid() {
    if (this.grid_) return this.grid_;
    const packed = atob(this.codes), grid = new Uint8Array(this.length * this.length);
    let at = 0, zeros = 0;
    for (let query = 0; query < this.length; ++query) {
      for (let key = Math.max(0, query - this.span + 1); key <= query; ++key) {
        if (zeros === 0) {
          const code = packed.charCodeAt(at++);
          if (code !== 0) { grid[query * this.length + key] = code; continue; }
          zeros = packed.charCodeAt(at++);
        }
        --zeros;
      }
    }
    return this.grid_ = grid;
  }

  inside(query, key) { return key <= query && query - key < this.span; }

  relevance(query, key) {
    const t = this.grid[query * this.length + key] / 255;
    return this.screening ? t * t * this.softmask[query - key] : t * this.scale;
  }

  /** All there is to know about a pair; `state`: accepted, rejected, outside or future. */
  pair(query, key) {
    if (key > query) return {state: 'future'};
    if (!this.inside(query, key)) return {state: 'outside'};
    const code = this.grid[query * this.length + key];
    const state = code ? 'accepted' : 'rejected';
    if (!this.screening) return {state, relevance: this.relevance(query, key)};
    const t = code / 255;
    return {state, similarity: 1 - this.accept * (1 - t), trim: t * t, softmask: this.softmask[query - key],
            relevance: this.relevance(query, key)};
  }

  /** The pair with the largest relevance times the logarithm of its distance. */
  mostTelling() {
    const grid = this.grid, length = this.length;
    const far = Float32Array.from({length: this.span}, (_, distance) => Math.log2(1 + distance) * this.softmask[distance]);
    let best = {query: length - 1, key: length - 1, worth: 0};
    for (let query = 0; query < length; ++query) {
      for (let key = Math.max(0, query - this.span + 1); key <= query; ++key) {
        const t = grid[query * length + key] / 255;
        const worth = (this.screening ? t * t : t * this.scale) * far[query - key];
        if (worth > best.worth) best = {query, key, worth};
      }
    }
    return best;
  }

  /** Largest relevance of every cell of a size x size picture; -1 where it lies outside the window. */
  pooled(size) {
    const values = new Float32Array(size * size).fill(-1);
    const grid = this.grid, length = this.length;
    for (let query = 0; query < length; ++query) {
      const row = Math.floor(query * size / length) * size;
      for (let key = Math.max(0, query - this.span + 1); key <= query; ++key) {
        const cell = row + Math.floor(key * size / length);
        const value = grid[query * length + key] ? this.relevance(query, key) : 0;
        if (value > values[cell]) values[cell] = value;
      }
    }
    return values;
  }
}

// ColorBrewer's YlGnBu, without its palest end, which would pass for white: safe for every kind of colour blindness.
const relevanceStops = [[237, 216, 120], [127, 205, 187], [65, 182, 196], [29, 145, 192], [34, 94, 168], [37, 52, 148],
                        [8, 29, 88]];
/** Relevance in (0, 1] to a colour; by its square root, so that faint retrievals show too. */
const relevanceColour = (relevance) => interpolate(relevanceStops, Math.sqrt(relevance));

const mapColours = () => theme.dark() ? {outside: [74, 77, 84], zero: [238, 238, 236]}
                                      : {outside: [196, 199, 204], zero: [255, 255, 255]};

/** A colour as ImageData holds it, read as one number of 32 bits. */
const pixel = ([red, green, blue]) => new Uint32Array(new Uint8Array([red, green, blue, 255]).buffer)[0];
const relevancePixels = Uint32Array.from({length: 1025}, (_, i) => pixel(relevanceColour(i / 1024)));

/** Draws a map into a canvas of min(T, largest) pixels a side. */
function paintMap(canvas, map, largest) {
  const size = Math.min(map.length, largest), colours = mapColours();
  const outside = pixel(colours.outside), zero = pixel(colours.zero);
  canvas.width = canvas.height = size;
  const context = canvas.getContext('2d');
  const image = context.createImageData(size, size);
  const pixels = new Uint32Array(image.data.buffer);
  map.pooled(size).forEach((value, cell) => {
    pixels[cell] = value < 0 ? outside : value === 0 ? zero : relevancePixels[Math.min(1024, Math.ceil(value * 1024))];
  });
  context.putImageData(image, 0, 0);
}
