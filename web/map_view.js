// The relevance section: thumbnails of all tiles, the chosen tile large, the pair of tokens under the pointer.
'use strict';

const controlNames = {'\n': '⏎', '\t': '⇥', ' ': '␣', '\r': '␍'};
/** A token for reading on its own: blanks become visible. */
const visibleToken = (token) => [...token].map((c) => controlNames[c] || c).join('');

class MapView {
  constructor(relevance) {
    this.tokens = relevance.tokens;
    this.maps = relevance.maps.map((tile) => new RelevanceMap(tile, this.tokens.length));
    this.heads = Math.max(...this.maps.map((map) => map.head)) + 1;
    this.chosen = 0;
    this.query = this.tokens.length - 1;
    this.key = this.query;
    this.drawLegend();
    this.makeThumbnails();
    this.makeTokens();
    this.listen();
    byId('map').style.setProperty('--cell', 100 / this.tokens.length + '%');
    theme.listeners.push(() => this.paint());
  }

  get map() { return this.maps[this.chosen]; }

  drawLegend() {
    const swatch = (name, style) => element('span', {class: 'key'}, element('i', {class: 'swatch ' + style}), name);
    const ramp = element('i', {class: 'ramp'});
    ramp.style.background = 'linear-gradient(to right, ' + Array.from({length: 21}, (_, i) =>
      rgb(relevanceColour(i / 20))).join(', ') + ')';
    byId('relevance-legend').append(swatch('outside the window', 'outside'), swatch('zero', 'zero'),
      element('span', {class: 'key'}, 'relevance 0', ramp, '1'));
  }

  makeThumbnails() {
    const grid = byId('thumbnails');
    grid.style.setProperty('--heads', this.heads);
    grid.closest('.maps').classList.toggle('many-heads', this.heads > 8);
    this.thumbnails = this.maps.map((map, index) => {
      const window = isNumber(map.accept) ? 'w ' + formatWindow(map.window, 10) : '';
      const accept = isNumber(map.accept) ? 'r ' + map.accept.toFixed(2) : '';
      const nonzero = formatPercent(map.nonzero, map.nonzero < 0.1 ? 1 : 0);
      const button = element('button', {type: 'button', class: 'thumbnail', tabindex: index === 0 ? 0 : -1,
        'aria-label': `Layer ${map.layer}, head ${map.head}: ${window} ${accept}, ${nonzero} non-zero`,
        style: `grid-row: ${map.layer + 1}; grid-column: ${map.head + 1}`},
        element('span', {class: 'numbers'}, element('b', {}, `${map.layer}.${map.head}`), element('span', {}, nonzero)),
        element('canvas', {}),
        element('span', {class: 'numbers'}, element('span', {}, window), element('span', {}, accept)));
      button.addEventListener('click', () => { this.choose(index); this.remember(); });
      return button;
    });
    grid.append(...this.thumbnails);
    grid.addEventListener('keydown', (event) => {
      const move = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.heads, ArrowDown: this.heads}[event.key];
      if (!move) return;
      event.preventDefault();
      const next = this.chosen + move;
      if (next < 0 || next >= this.maps.length) return;
      this.choose(next);
      this.thumbnails[next].focus();
    });
  }

  makeTokens() {
    this.spans = this.tokens.map((token, index) =>
      element('span', {'data-index': index}, token.endsWith('\n') ? visibleToken(token) + '\n' : token));
    const area = byId('tokens');
    area.append(...this.spans);
    const longest = Math.max(...this.tokens.join('').split('\n').map((line) => line.length));
    if (longest <= 24) {  // short lines, like those of a table, side by side
      area.style.columnWidth = longest + 3 + 'ch';
      area.style.maxHeight = 'none';
    }
  }

  listen() {
    const area = byId('map');
    const follow = (event) => {
      const box = area.getBoundingClientRect(), length = this.tokens.length;
      this.point(Math.floor((event.clientY - box.top) / box.height * length),
                 Math.floor((event.clientX - box.left) / box.width * length));
    };
    area.addEventListener('pointermove', follow);
    area.addEventListener('pointerdown', (event) => { follow(event); this.remember(); });
    area.addEventListener('keydown', (event) => this.onKey(event));
    byId('tokens').addEventListener('click', (event) => {
      const index = event.target.dataset.index;
      if (index === undefined) return;
      const query = Number(index);
      this.point(query, this.strongest(query));
      this.remember();
    });
  }

  onKey(event) {
    const by = event.shiftKey ? 10 : 1;
    const moves = {ArrowUp: [-by, 0], ArrowDown: [by, 0], ArrowLeft: [0, -by], ArrowRight: [0, by]};
    if (moves[event.key]) {
      this.point(this.query + moves[event.key][0], this.key + moves[event.key][1]);
    } else if (event.key === 'n' || event.key === 'p') {
      this.jump(event.key === 'n' ? 1 : -1);
    } else {
      return;
    }
    event.preventDefault();
  }

  /** To the next accepted key of this query in a direction, if there is one. */
  jump(direction) {
    for (let key = this.key + direction; key >= 0 && key <= this.query; key += direction) {
      if (this.map.pair(this.query, key).state === 'accepted') return this.point(this.query, key);
    }
  }

  /** The key with the largest relevance for a query; the query itself when all are rejected. */
  strongest(query) {
    let best = query;
    for (let key = 0; key <= query; ++key) {
      if (this.map.inside(query, key) &&
          (!this.map.inside(query, best) || this.map.relevance(query, key) > this.map.relevance(query, best))) best = key;
    }
    return best;
  }

  choose(index) {
    this.thumbnails[this.chosen].removeAttribute('aria-current');
    this.thumbnails[this.chosen].tabIndex = -1;
    this.chosen = index;
    this.thumbnails[index].setAttribute('aria-current', 'true');
    this.thumbnails[index].tabIndex = 0;
    paintMap(byId('map-canvas'), this.map, 1024);
    const {layer, head, window, accept, nonzero} = this.map;
    byId('tile-title').textContent = `Layer ${layer}, head ${head}`;
    const facts = [];
    if (isNumber(accept)) facts.push(['w', formatWindow(window)], ['r', accept.toFixed(3)]);
    facts.push(['non-zero', formatPercent(nonzero, 1)]);
    byId('tile-numbers').replaceChildren(...facts.map(([name, value]) => element('span', {}, name + ' ',
      element('b', {}, value))));
    this.point(this.query, this.key);
  }

  clamped(index) { return Math.min(Math.max(index, 0), this.tokens.length - 1); }

  /** Shows a pair of tokens: the cross in the map, the numbers, what the query retrieves in the text. */
  point(query, key) {
    this.query = this.clamped(query);
    this.key = this.clamped(key);
    const middle = (index) => 100 * (index + 0.5) / this.tokens.length + '%';
    byId('cross-row').style.top = byId('cross-cell').style.top = middle(this.query);
    byId('cross-column').style.left = byId('cross-cell').style.left = middle(this.key);
    this.drawPair();
    this.lightTokens();
  }

  /** A token with its neighbours, so that one byte can be told from another. */
  inContext(index) {
    const part = (low, high) => this.tokens.slice(Math.max(0, low), Math.max(0, high)).map(visibleToken).join('');
    return element('span', {class: 'context'}, part(index - 10, index), element('b', {}, visibleToken(this.tokens[index])),
                   part(index + 1, index + 7));
  }

  drawPair() {
    const pair = this.map.pair(this.query, this.key);
    const bound = isNumber(this.map.accept) ? (1 - this.map.accept).toFixed(2) : null;
    const verdict = {
      accepted: 'accepted',
      rejected: bound === null ? 'weight 0' : `rejected: s ≤ 1 − r = ${bound}`,
      outside: `outside the window: distance ${this.query - this.key} ≥ w`,
      future: 'the future: never seen',
    }[pair.state];
    const shown = (value) => (pair.state === 'accepted' && isNumber(value) ? value.toFixed(3) : '–');
    const numbers = this.map.screening
      ? [['s', pair.state === 'rejected' ? '≤ ' + bound : shown(pair.similarity)],
         ['Trim', pair.state === 'rejected' ? '0' : shown(pair.trim)],
         ['Softmask', isNumber(pair.softmask) ? pair.softmask.toFixed(3) : pair.state === 'outside' ? '0' : '–'],
         ['Relevance', pair.state === 'accepted' ? shown(pair.relevance) : pair.state === 'future' ? '–' : '0']]
      : [['Weight', shown(pair.relevance)]];
    byId('pair').replaceChildren(
      element('div', {class: 'who'}, element('span', {class: 'role'}, 'query ' + this.query), this.inContext(this.query)),
      element('div', {class: 'who'}, element('span', {class: 'role'}, 'key ' + this.key), this.inContext(this.key)),
      element('div', {class: 'verdict ' + pair.state}, verdict),
      element('dl', {class: 'values'}, ...numbers.map(([name, value]) =>
        element('div', {}, element('dt', {}, name), element('dd', {}, value)))));
  }

  lightTokens() {
    this.spans.forEach((span, key) => {
      const relevance = this.map.inside(this.query, key) ? this.map.relevance(this.query, key) : 0;
      span.className = key === this.query ? 'query' : key === this.key ? 'key' : '';
      span.style.backgroundColor = relevance > 0 ? rgb(relevanceColour(relevance)) : '';
      span.style.color = relevance > 0 ? (relevance > 0.2 ? '#fff' : '#111') : '';
    });
  }

  paint() {
    this.maps.forEach((map, index) => paintMap(this.thumbnails[index].querySelector('canvas'), map, 128));
    this.choose(this.chosen);
  }

  /** Puts the tile and the pair into the address, so that a link leads back here. */
  remember() {
    const parameters = fragment();
    parameters.set('tile', this.map.layer + '.' + this.map.head);
    parameters.set('query', this.query);
    parameters.set('key', this.key);
    history.replaceState(null, '', '#' + parameters);
  }

  /** Reads what `remember` wrote; without it, the most telling pair. */
  recall() {
    const parameters = fragment();
    const named = this.maps.findIndex((map) => map.layer + '.' + map.head === parameters.get('tile'));
    const query = Number.parseInt(parameters.get('query'), 10), key = Number.parseInt(parameters.get('key'), 10);
    const telling = this.mostTelling(named);
    this.choose(telling.tile);
    if (!Number.isInteger(query)) return this.point(telling.query, telling.key);
    this.point(query, Number.isInteger(key) ? key : this.strongest(this.clamped(query)));
  }

  /** Of all tiles, or of the one named, the pair that retrieves most strongly from furthest away, and selects most. */
  mostTelling(named) {
    const last = this.tokens.length - 1;
    let best = {tile: Math.max(named, 0), query: last, key: last, worth: 0};
    this.maps.forEach((map, tile) => {
      if (named >= 0 && tile !== named) return;
      const pair = map.mostTelling();
      pair.worth *= 1 - map.nonzero;
      if (pair.worth > best.worth) best = {tile, ...pair};
    });
    return best;
  }
}

function drawRelevance(relevance) {
  const view = new MapView(relevance);
  view.recall();
  view.paint();
  window.addEventListener('hashchange', () => view.recall());
}
