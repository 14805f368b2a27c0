// Shared by all parts of the page: elements, number formatting, colours, the theme.
'use strict';

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text nodes, so nothing is ever parsed as HTML. */
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Escapes text for Plotly, which interprets some HTML in its labels. */
const plotlyText = (text) => String(text).replace(/[&<>]/g, (c) => ({'&': '&amp;', '<': '&lt;', '>': '&gt;'})[c]);

/** Text with \n as the only line ending and other control characters escaped, because fonts may lack them. */
const visibleText = (text) => text.replaceAll('\r\n', '\n').replace(/[\0-\x08\x0b-\x1f\x7f-\x9f]/g, (c) =>
  (c === '\r' ? '\\r' : '\\x' + c.charCodeAt(0).toString(16).toUpperCase().padStart(2, '0')));

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);

function formatNumber(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  if (value === Infinity) return '∞';
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(digits - 1);
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString('en');
  return String(Number(value.toPrecision(digits)));
}

function formatCount(value) {
  for (const [unit, size] of [['T', 1e12], ['G', 1e9], ['M', 1e6], ['k', 1e3]])
    if (value >= size) return Number((value / size).toPrecision(3)) + unit;
  return formatNumber(value);
}

const formatBytes = (bytes) => (bytes >= 2 ** 30 ? (bytes / 2 ** 30).toFixed(1) + ' GiB' : Math.round(bytes / 2 ** 20) + ' MiB');
const formatPercent = (fraction, digits = 0) => (100 * fraction).toFixed(digits) + '%';
/** A window in tokens, or ∞ for null: JSON has no infinity. */
const formatWindow = (window, decimalsBelow = 1000) => {
  if (window === null) return '∞';
  if (window < decimalsBelow) return window.toFixed(1);
  return window < 1e4 ? Math.round(window).toLocaleString('en') : formatCount(window);
};

/** A duration as in the terminal: `1h02m`, `3m20s`, `12s`. */
function formatDuration(seconds) {
  const whole = Math.round(seconds), two = (value) => String(value).padStart(2, '0');
  if (whole < 60) return whole + 's';
  if (whole < 3600) return Math.floor(whole / 60) + 'm' + two(whole % 60) + 's';
  return Math.floor(whole / 3600) + 'h' + two(Math.floor(whole / 60) % 60) + 'm';
}

/** A loss in nats: `1.606`, `0.0213`, `<0.0001`. */
const formatLoss = (loss) => (Math.abs(loss) < 1 && loss !== 0 ? (loss > 0 && loss < 5e-5 ? '<0.0001' : loss.toFixed(4))
                                                               : loss.toFixed(3));

/** Numbers with their names below them, in rows of nearly equal length. */
function drawFacts(facts) {
  const list = byId('facts');
  list.replaceChildren(...facts.map(([name, value]) =>
    element('div', {}, element('dt', {}, name), element('dd', {}, value))));
  const arrange = () => {
    const gap = 20, least = 108, most = Math.max(1, Math.floor((list.clientWidth + gap) / (least + gap)));
    const rows = Math.ceil(facts.length / most);
    list.style.gridTemplateColumns = `repeat(${Math.ceil(facts.length / rows)}, minmax(0, 1fr))`;
  };
  window.addEventListener('resize', arrange);
  arrange();
}

/** A table: header cells, then rows of strings; numbers are aligned by the style sheet. */
function table(header, rows) {
  const head = element('tr', {}, ...header.map((text) => element('th', {scope: 'col'}, text)));
  const body = rows.map((row) => element('tr', {}, ...row.map((cell, column) =>
    column === 0 ? element('th', {scope: 'row'}, cell) : element('td', {}, cell))));
  return element('table', {}, element('thead', {}, head), element('tbody', {}, ...body));
}

/** A setting as text: `59.9 GFLOP/s`, `22.9 GiB`, `0.001`; a list of objects has a line for each. */
function formatSetting(name, value) {
  if (Array.isArray(value)) {
    const objects = value.some((each) => each !== null && typeof each === 'object');
    return value.map((each) => (objects ? flattened(each).map(([key, text]) => `${key} ${text}`).join(', ')
                                        : String(each))).join(objects ? '\n' : ' ') || '–';
  }
  if (!isNumber(value)) return String(value);
  if (name.endsWith('flops')) return formatCount(value).replace(/[kMGT]?$/, ' $&FLOP/s');
  if (name.endsWith('bytes')) return formatBytes(value);
  return Number.isInteger(value) ? value.toLocaleString('en', {useGrouping: Math.abs(value) >= 1e4})
                                 : String(Number(value.toPrecision(6)));
}

/** [name, text] of everything in an object, nested objects with dotted names. */
function flattened(object) {
  const rows = [];
  const visit = (prefix, value) => {
    if (value !== null && typeof value === 'object' && !Array.isArray(value)) {
      for (const [name, inner] of Object.entries(value)) visit(prefix ? prefix + '.' + name : name, inner);
    } else {
      rows.push([prefix, formatSetting(prefix, value)]);
    }
  };
  visit('', object);
  return rows;
}

/** Names and values, nested objects flattened to dotted names. */
function settings(object) {
  return element('table', {class: 'settings'}, element('tbody', {}, ...flattened(object).map(([name, value]) =>
    element('tr', {}, element('th', {scope: 'row'}, name), element('td', {}, value)))));
}

// Colours of the layers: viridis without its ends, which would be invisible on one of the two backgrounds.
const viridis = [[72, 36, 117], [65, 68, 135], [53, 95, 141], [42, 120, 142], [33, 145, 140], [34, 168, 132],
                 [68, 191, 112], [122, 209, 81], [189, 223, 38]];

function interpolate(stops, position) {
  const at = Math.min(Math.max(position, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  return stops[low].map((value, channel) => Math.round(value + (at - low) * (stops[low + 1][channel] - value)));
}

const rgb = (channels) => 'rgb(' + channels.join(',') + ')';

function layerColour(layer, layers) {
  const [low, high] = theme.dark() ? [0.25, 1] : [0, 0.86];
  return rgb(interpolate(viridis, layers > 1 ? low + (high - low) * layer / (layers - 1) : (low + high) / 2));
}

// The theme follows the system unless the user selects one or the address contains `#theme=dark`.
const theme = {
  chosen: null,
  listeners: [],
  system: window.matchMedia('(prefers-color-scheme: dark)'),
  dark() { return this.chosen ? this.chosen === 'dark' : this.system.matches; },
  colour(name) { return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim(); },
  apply(choice) {
    this.chosen = choice;
    document.documentElement.dataset.theme = this.dark() ? 'dark' : 'light';
    for (const listener of this.listeners) listener();
  },
  remember(choice) {
    try { localStorage.setItem('tamis-theme', choice); } catch { /* a page opened from disk may have no storage */ }
    this.apply(choice);
  },
  remembered() {
    try { return localStorage.getItem('tamis-theme'); } catch { return null; }
  },
};

/** The URL fragment as names and values: `#theme=dark&tile=2.3&query=40&key=12`. */
const fragment = () => new URLSearchParams(location.hash.replace(/^#/, ''));

/** Shows a section of the page and lists it in the contents. */
function show(id) {
  const section = byId(id);
  section.hidden = false;
  byId('contents').append(element('a', {href: '#' + id}, section.querySelector('h2').textContent));
}

/** Runs `draw` so that an error in one part does not prevent the others. */
function drawParts(parts) {
  for (const part of parts) {
    try { part(); } catch (error) { reportError(String(error)); }
  }
}

/** Calls `draw` with the page's data and redraws charts when the theme changes; sets <html data-ready> at the end. */
function startPage(draw) {
  theme.apply(fragment().get('theme') || theme.remembered());
  theme.system.addEventListener('change', () => theme.apply(theme.chosen));
  byId('theme').addEventListener('click', () => theme.remember(theme.dark() ? 'light' : 'dark'));
  const drawAll = async (data) => {
    byId('footer').textContent =
      `Tamis ${data.version} · this page is self-contained and loads no other files`;
    draw(data);
    theme.listeners.push(() => charts.forEach((drawChart) => drawChart()));
    await Promise.all(charts.map(async (drawChart) => {
      try { await drawChart(); } catch (error) { reportError(String(error)); }
    }));
  };
  drawAll(JSON.parse(byId('data').textContent)).catch((error) => reportError(String(error)))
    .then(() => { document.documentElement.dataset.ready = 'true'; });
}
