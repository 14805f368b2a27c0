// The section of relevance maps: thumbnails of all heads, the selected map, and the selected pair of tokens.
'use strict';

/** A token with visible white space. */
const visibleToken = (token) => visibleText(token.replaceAll('\n', '↵').replaceAll('\t', '→').replaceAll(' ', '␣'));

class MapView {
  constructor(relevance) {
    this.tokens = relevance.tokens;
    this.maps = relevance.maps.map((tile) => new RelevanceMap(tile, this.tokens.length));
    this.heads = Math.max(...this.maps.map((map) => map.head)) + 1;
    this.chosen = 0;
    this.query = this.tokens.length - 1;
    this.key = this.query;
    this.scale = this.maps.every((map) => map.mechanism === 'screening') ? 'value' : 'log';
    this.makeScaleSwitch();
    this.makeThumbnails();
    this.makeTokens();
    this.listen();
    byId('map').style.setProperty('--cell', 100 / this.tokens.length + '%');
    theme.listeners.push(() => this.paint());
  }

  get map() { return this.maps[this.chosen]; }

  makeScaleSwitch() {
    const select = byId('map-scale');
    select.append(...Object.entries(mapScales).map(([value, {name}]) => element('option', {value}, name)));
    select.value = this.scale;
    select.addEventListener('change', () => {
      this.scale = select.value;
      this.paint();
    });
  }

  /** The legend of the selected map's colours. */
  drawLegend() {
    const swatch = (name, style) => element('span', {class: 'key'}, element('i', {class: 'swatch ' + style}), name);
    const ramp = element('i', {class: 'ramp'}), scale = mapScales[this.scale];
    ramp.style.background = 'linear-gradient(to right, ' + Array.from({length: 21}, (_, i) =>
      rgb(relevanceColour(i / 20))).join(', ') + ')';
    byId('relevance-legend').replaceChildren(
      swatch('future' + (this.map.window === null ? '' : ', outside the window'), 'outside'),
      swatch(this.map.selects ? 'rejected' : 'exactly 0', 'zero'),
      element('span', {class: 'key'}, `${this.map.screening ? 'relevance' : 'weight'} ${scale.low(this.map.top)}`, ramp,
              scale.high(this.map.top)));
    byId('scale-note').textContent = scale.note;
  }

  makeThumbnails() {
    const grid = byId('thumbnails');
    grid.style.setProperty('--heads', this.heads);
    grid.closest('.maps').classList.toggle('many-heads', this.heads > 8);
    this.thumbnails = this.maps.map((map, index) => {
      const window = isNumber(map.window) ? 'w ' + formatWindow(map.window, 10) : '';
      const accept = isNumber(map.accept) ? 'r ' + map.accept.toFixed(2) : '';
      const button = element('button', {type: 'button', class: 'thumbnail', tabindex: index === 0 ? 0 : -1,
        'aria-label': `Layer ${map.layer}, head ${map.head}: ${[map.mechanism, window, accept].filter(Boolean).join(' ')}, ` +
                      this.summary(map).join(' '),
        style: `grid-row: ${map.layer + 1}; grid-column: ${map.head + 1}`},
        element('span', {class: 'numbers'}, element('b', {}, `${map.layer}.${map.head}`),
                element('span', {}, map.selects ? formatPercent(map.nonzero, map.nonzero < 0.1 ? 1 : 0)
                                                : this.summary(map)[1])),
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

  /** The most informative number about a head: its name and value. */
  summary(map) {
    if (map.selects) return ['accepts', formatPercent(map.nonzero, 1)];
    return ['attends to', isNumber(map.keys) ? `${Number(map.keys.toPrecision(3))} keys` : 'no keys'];
  }

  makeTokens() {
    this.spans = this.tokens.map((token, index) =>
      element('span', {'data-index': index}, token.endsWith('\n') ? visibleToken(token) + '\n' : visibleText(token)));
    const area = byId('tokens');
    area.append(...this.spans);
    const longest = Math.max(...this.tokens.join('').split('\n').map((line) => line.length));
    if (longest <= 24) {  // short lines, such as those of a table, in columns
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

  /** Moves to the next key of this query, in a direction, that is accepted or has a large weight. */
  jump(direction) {
    for (let key = this.key + direction; key >= 0 && key <= this.query; key += direction) {
      if (this.map.standsOut(this.query, key)) return this.point(this.query, key);
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
    paintMap(byId('map-canvas'), this.map, 1024, this.scale);
    this.drawLegend();
    const {layer, head, window, accept, mechanism, selects} = this.map;
    byId('tile-title').replaceChildren(`Layer ${layer}, head ${head} `, element('small', {}, mechanism));
    const facts = [];
    if (isNumber(window)) facts.push(['w', formatWindow(window)]);
    if (isNumber(accept)) facts.push(['r', accept.toFixed(3)]);
    facts.push(this.summary(this.map));
    byId('tile-numbers').replaceChildren(...facts.map(([name, value]) => element('span', {}, name + ' ',
      element('b', {}, value))));
    byId('map').setAttribute('aria-label', `${this.map.screening ? 'Relevance' : 'Attention'} map. Arrow keys move the ` +
      `pair of tokens, with Shift by ten; N and P jump to the next and previous ${
        selects ? 'accepted key' : 'key with more than an equal weight'}.`);
    this.point(this.query, this.key);
  }

  clamped(index) { return Math.min(Math.max(index, 0), this.tokens.length - 1); }

  /** Shows a pair of tokens: the cross in the map, the numbers, and the keys that the query retrieves in the text. */
  point(query, key) {
    this.query = this.clamped(query);
    this.key = this.clamped(key);
    const middle = (index) => 100 * (index + 0.5) / this.tokens.length + '%';
    byId('cross-row').style.top = byId('cross-cell').style.top = middle(this.query);
    byId('cross-column').style.left = byId('cross-cell').style.left = middle(this.key);
    this.drawPair();
    this.lightTokens();
  }

  /** A token with its neighbours, because a single byte is not informative. */
  inContext(index) {
    const part = (low, high) => this.tokens.slice(Math.max(0, low), Math.max(0, high)).map(visibleToken).join('');
    return element('span', {class: 'context'}, part(index - 10, index), element('b', {}, visibleToken(this.tokens[index])),
                   part(index + 1, index + 7));
  }

  drawPair() {
    const {map, query, key} = this, pair = map.pair(query, key);
    const bound = isNumber(map.accept) ? (1 - map.accept).toFixed(2) : null;
    const ranked = () => {
      const {place, of} = map.rank(query, key);
      return `rank ${place} of ${of} keys by weight`;
    };
    const description = {
      accepted: () => 'accepted',
      rejected: () => (bound === null ? 'rejected: weight exactly 0' : `rejected: s ≤ 1 − r = ${bound}`),
      weighted: ranked,
      outside: () => `outside the window: distance ${query - key} ≥ w`,
      future: () => 'in the future of the query',
    }[pair.state]();
    const seen = isNumber(pair.relevance), rejected = pair.state === 'rejected';
    const numbers = map.screening
      ? [['s', !seen ? '–' : rejected ? '≤ ' + bound : pair.similarity.toFixed(3)],
         ['Trim', seen ? formatWeight(pair.trim) : '–'],
         ['Softmask', seen ? formatWeight(pair.softmask) : pair.state === 'outside' ? '0' : '–'],
         ['Relevance', seen ? formatWeight(pair.relevance) : pair.state === 'outside' ? '0' : '–']]
      : [['Weight', seen ? formatWeight(pair.relevance) : pair.state === 'outside' ? '0' : '–'],
         ['Row’s largest', formatWeight(map.rows[query].largest)],
         ['Row’s sum', formatWeight(map.rows[query].sum)]];
    byId('pair').replaceChildren(
      element('div', {class: 'who'}, element('span', {class: 'role'}, 'query ' + this.query), this.inContext(this.query)),
      element('div', {class: 'who'}, element('span', {class: 'role'}, 'key ' + this.key), this.inContext(this.key)),
      element('div', {class: 'pair-state ' + pair.state}, description),
      element('dl', {class: 'values'}, ...numbers.map(([name, value]) =>
        element('div', {}, element('dt', {}, name), element('dd', {}, value)))));
  }

  lightTokens() {
    this.spans.forEach((span, key) => {
      const relevance = this.map.inside(this.query, key) ? this.map.relevance(this.query, key) : 0;
      const shade = relevance > 0 ? this.map.shade(this.query, relevance, this.scale) : 0;
      span.className = key === this.query ? 'query' : key === this.key ? 'key' : '';
      span.style.backgroundColor = relevance > 0 ? rgb(relevanceColour(shade)) : '';
      span.style.color = relevance > 0 ? (shade > 0.45 ? '#fff' : '#111') : '';
    });
  }

  paint() {
    this.maps.forEach((map, index) => paintMap(this.thumbnails[index].querySelector('canvas'), map, 128, this.scale));
    this.choose(this.chosen);
  }

  /** Stores the head and the pair in the URL fragment, so that it can be shared as a link. */
  remember() {
    const parameters = fragment();
    parameters.set('tile', this.map.layer + '.' + this.map.head);
    parameters.set('query', this.query);
    parameters.set('key', this.key);
    history.replaceState(null, '', '#' + parameters);
  }

  /** Restores the selection that `remember` stored, else selects the strongest pair. */
  recall() {
    const parameters = fragment();
    const named = this.maps.findIndex((map) => map.layer + '.' + map.head === parameters.get('tile'));
    const query = Number.parseInt(parameters.get('query'), 10), key = Number.parseInt(parameters.get('key'), 10);
    const telling = this.mostTelling(named);
    this.choose(telling.tile);
    if (!Number.isInteger(query)) return this.point(telling.query, telling.key);
    this.point(query, Number.isInteger(key) ? key : this.strongest(this.clamped(query)));
  }

  /** The pair, of all heads or of one, that combines a strong weight, a long distance and few competing keys. */
  mostTelling(named) {
    const last = this.tokens.length - 1;
    let best = {tile: Math.max(named, 0), query: last, key: last, worth: 0};
    this.maps.forEach((map, tile) => {
      if (named >= 0 && tile !== named) return;
      const pair = map.mostTelling();
      pair.worth *= map.selects ? 1 - map.nonzero : Math.max(1 - map.keys / this.tokens.length, 0);
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
