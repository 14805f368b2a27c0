// Relevance maps: decodes a float16 t for each pair of tokens and computes its weight and similarity.
//
//   screening (scale null)   t = sqrt(Trim)
//     s = 1 - r (1 - t)      similarity
//     a = t^2                Trim
//     m = (cos(pi d / w) + 1) / 2   Softmask at distance d = i - j; 1 when w is infinite
//     relevance = a m
//   any other mixer, and other shapes of Trim and Softmask   relevance = scale t, the weight that multiplies a value
'use strict';

/** The values of all non-negative float16 numbers, indexed by their bits. */
const halfValues = Float32Array.from({length: 0x7c00}, (_, bits) => {
  const exponent = bits >> 10, fraction = bits & 1023;
  return exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
});

// Maps a weight to a shade in [0, 1]; the pictures of `tamis inspect --map` have the same scales and colours.
const mapScales = {
  value: {name: 'by value', low: () => '0', high: (top) => formatWeight(top),
          note: 'Colour: the square root of the weight.',
          shade: (weight, row, top) => Math.sqrt(weight / top)},
  row: {name: 'by the largest weight of the row', low: () => '0', high: () => 'largest of the row',
        note: 'Colour: the square root of the weight relative to the largest weight of its row, so rows have different scales.',
        shade: (weight, row) => Math.sqrt(weight / row)},
  log: {name: 'by logarithm', low: (top) => '≤ ' + formatWeight(top / 1e4), high: (top) => formatWeight(top),
        note: 'Colour: the logarithm of the weight, over four powers of ten.',
        shade: (weight, row, top) => 1 + Math.log10(weight / top) / 4},
};

/** A weight as text with up to three significant digits: `0.0123`, `1.2e-7`, `0`, `1`. */
const formatWeight = (weight) => (weight > 0 && weight < 1e-4 ? weight.toExponential(1) : String(Number(weight.toPrecision(3))));

class RelevanceMap {
  /** `tile`: {layer, head, window, accept, mechanism, selects, nonzero, keys, scale, numbers}; `length`: T. */
  constructor(tile, length) {
    Object.assign(this, tile);
    this.length = length;
    this.span = tile.window === null ? length : Math.min(length, Math.ceil(tile.window));  // integer distances < w
    this.screening = tile.scale === undefined || tile.scale === null;
    this.softmask = Float32Array.from({length: this.span}, (_, distance) =>
      tile.window === null || !this.screening ? 1 : (Math.cos(Math.PI * distance / tile.window) + 1) / 2);
  }

  /** Decodes the float16 bits of all pairs, indexed by query * span + distance. A run of zeros is 0 and its length. */
  get halves() {
    if (this.halves_) return this.halves_;
    const packed = atob(this.numbers), halves = new Uint16Array(this.length * this.span);
    const next = () => { at += 2; return packed.charCodeAt(at - 2) | packed.charCodeAt(at - 1) << 8; };
    let at = 0, zeros = 0;
    for (let query = 0; query < this.length; ++query) {
      for (let key = Math.max(0, query - this.span + 1); key <= query; ++key) {
        if (zeros === 0) {
          const half = next();
          if (half !== 0) { halves[query * this.span + query - key] = half; continue; }
          zeros = next();
        }
        --zeros;
      }
    }
    return this.halves_ = halves;
  }

  inside(query, key) { return key <= query && query - key < this.span; }
  firstKey(query) { return Math.max(0, query - this.span + 1); }
  number(query, key) { return halfValues[this.halves[query * this.span + query - key]]; }

  /** The weight of a pair inside the window, which multiplies the value. */
  relevance(query, key) {
    const t = this.number(query, key);
    return this.screening ? t * t * this.softmask[query - key] : t * this.scale;
  }

  /** {sum, largest} of each query's row. */
  get rows() {
    if (this.rows_) return this.rows_;
    const rows = [];
    for (let query = 0; query < this.length; ++query) {
      let sum = 0, largest = 0;
      for (let key = this.firstKey(query); key <= query; ++key) {
        const relevance = this.relevance(query, key);
        sum += relevance;
        if (relevance > largest) largest = relevance;
      }
      rows.push({sum, largest});
    }
    return this.rows_ = rows;
  }

  /** The weight of the darkest colour: 1, or the largest weight if that is greater. */
  get top() { return this.top_ ??= Math.max(1, ...this.rows.map(({largest}) => largest)); }

  /** The shade of a weight, in [0, 1]. */
  shade(query, relevance, scale) {
    return Math.min(Math.max(mapScales[scale].shade(relevance, this.rows[query].largest, this.top), 0), 1);
  }

  /**
   * The state and numbers of a pair. `state` is future, outside, accepted or rejected (mixers that select), or weighted
   * (all others).
   */
  pair(query, key) {
    if (key > query) return {state: 'future'};
    if (!this.inside(query, key)) return {state: 'outside'};
    const relevance = this.relevance(query, key), t = this.number(query, key);
    const state = !this.selects ? 'weighted' : t > 0 ? 'accepted' : 'rejected';
    if (!this.screening) return {state, relevance};
    return {state, similarity: 1 - this.accept * (1 - t), trim: t * t, softmask: this.softmask[query - key], relevance};
  }

  /** The rank of a key by weight among the keys of a query, 1 for the largest, and the number of keys. */
  rank(query, key) {
    const own = this.relevance(query, key), first = this.firstKey(query);
    let place = 1;
    for (let other = first; other <= query; ++other) place += this.relevance(query, other) > own;
    return {place, of: query - first + 1};
  }

  /** True for a key that the query accepts or, for other mixers, that has more than the average weight. */
  standsOut(query, key) {
    if (!this.inside(query, key)) return false;
    if (this.selects) return this.number(query, key) > 0;
    return this.relevance(query, key) > this.rows[query].sum / (query - this.firstKey(query) + 1);
  }

  /** The pair with the largest relevance times the logarithm of its distance. */
  mostTelling() {
    let best = {query: this.length - 1, key: this.length - 1, worth: 0};
    for (let query = 0; query < this.length; ++query) {
      for (let key = this.firstKey(query); key <= query; ++key) {
        const worth = this.relevance(query, key) * Math.log2(1 + query - key);
        if (worth > best.worth) best = {query, key, worth};
      }
    }
    return best;
  }

  /** The largest colour index (see mapColours) in each cell of a size x size picture. */
  pooled(size, scale) {
    const cells = new Uint8Array(size * size), length = this.length;
    for (let query = 0; query < length; ++query) {
      const row = Math.floor(query * size / length) * size;
      for (let key = this.firstKey(query); key <= query; ++key) {
        const cell = row + Math.floor(key * size / length), relevance = this.relevance(query, key);
        const colour = relevance > 0 ? shadeColour(this.shade(query, relevance, scale)) : zeroColour;
        if (colour > cells[cell]) cells[cell] = colour;
      }
    }
    return cells;
  }
}

// Colour indices: 0 outside the window, 1 exactly zero, 2 to 255 for the shades 0 to 1.
const zeroColour = 1;
const shadeColour = (shade) => Math.round(2 + 253 * shade);

// ColorBrewer's YlGnBu without its palest end, which would look white; suitable for all kinds of colour blindness.
const relevanceStops = [[237, 216, 120], [127, 205, 187], [65, 182, 196], [29, 145, 192], [34, 94, 168], [37, 52, 148],
                        [8, 29, 88]];
const relevanceColour = (shade) => interpolate(relevanceStops, (shadeColour(shade) - 2) / 253);

/** The colours by index, each as a 32-bit number in the format of ImageData. */
function mapColours() {
  const outside = theme.dark() ? [74, 77, 84] : [196, 199, 204], zero = theme.dark() ? [238, 238, 236] : [255, 255, 255];
  const shades = Array.from({length: 254}, (_, i) => interpolate(relevanceStops, i / 253));
  const bytes = [outside, zero, ...shades].flatMap((colour) => [...colour, 255]);
  return new Uint32Array(new Uint8Array(bytes).buffer);
}

/** Draws a map into a square canvas with sides of min(T, largest) pixels. */
function paintMap(canvas, map, largest, scale) {
  const size = Math.min(map.length, largest), colours = mapColours();
  canvas.width = canvas.height = size;
  const context = canvas.getContext('2d');
  const image = context.createImageData(size, size);
  const pixels = new Uint32Array(image.data.buffer);
  map.pooled(size, scale).forEach((number, cell) => { pixels[cell] = colours[number]; });
  context.putImageData(image, 0, 0);
}
