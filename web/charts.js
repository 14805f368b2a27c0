// The charts, drawn by Plotly.
'use strict';

const charts = [];  // functions that draw a chart; called again when the theme changes

function chartLayout(overrides) {
  const axis = {
    gridcolor: theme.colour('grid'), linecolor: theme.colour('grid'), zeroline: false, automargin: true,
    ticks: '', tickfont: {color: theme.colour('muted')},
    title: {font: {size: 12, color: theme.colour('muted')}, standoff: 8},
  };
  const merge = (base, extra) => {
    const result = {...base};
    for (const [name, value] of Object.entries(extra || {})) {
      const plain = value !== null && typeof value === 'object' && !Array.isArray(value);
      result[name] = plain ? merge(base[name] || {}, value) : value;
    }
    return result;
  };
  return merge({
    font: {family: getComputedStyle(document.body).fontFamily, size: 12, color: theme.colour('text')},
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
    margin: {l: 48, r: 12, t: 8, b: 40}, showlegend: false, hovermode: 'closest', dragmode: 'zoom',
    hoverlabel: {
      bgcolor: theme.colour('raised'), bordercolor: theme.colour('line'),
      font: {color: theme.colour('text'), size: 12}, align: 'left',
    },
    legend: {orientation: 'h', x: 1, xanchor: 'right', y: 1.02, yanchor: 'bottom', bgcolor: 'rgba(0,0,0,0)'},
    xaxis: axis, yaxis: axis,
  }, overrides);
}

/**
 * Draws `make() -> {traces, layout}` into #id once the page is laid out, because a chart takes the size of its element,
 * and again whenever the theme changes. Returns the function that draws it.
 */
function addChart(id, label, make) {
  const node = byId(id);
  node.setAttribute('role', 'img');
  node.setAttribute('aria-label', label);
  const draw = () => {
    const {traces, layout} = make();
    return Plotly.react(node, traces, chartLayout(layout), {responsive: true, displayModeBar: false});
  };
  charts.push(draw);
  return draw;
}

/** Moving average over 2 radius + 1 points; at both ends over fewer points, so that it stays centred. */
function smooth(values, radius) {
  const sums = [0];
  for (const value of values) sums.push(sums[sums.length - 1] + value);
  return values.map((_, i) => {
    const near = Math.min(radius, i, values.length - 1 - i);
    return (sums[i + near + 1] - sums[i - near]) / (2 * near + 1);
  });
}

/** A series as a pale line with a smoothed line over it. */
function line(series, name, colour) {
  const radius = Math.round(series.y.length / 60), told = '<br>' + plotlyText(name) + ' %{y:.4g}<extra></extra>';
  const raw = {x: series.x, y: series.y, name: plotlyText(name), mode: 'lines', hoverinfo: radius ? 'skip' : 'all',
               showlegend: !radius, line: {color: colour, width: radius ? 1 : 2}, opacity: radius ? 0.3 : 1,
               hovertemplate: series.unit + ' %{x:,}' + told};
  if (!radius) return [raw];
  return [raw, {...raw, y: smooth(series.y, radius), opacity: 1, showlegend: true, hoverinfo: 'all',
                line: {color: colour, width: 2}}];
}

function spans(values, factor) {
  const positive = values.filter((value) => value > 0);
  return Math.max(...positive) > factor * Math.min(...positive);
}

const powerOfTen = (exponent) => `10<sup>${String(exponent).replace('-', '−')}</sup>`;
const tickText = (tick) => (tick >= 1e6 || tick < 1e-3 ? powerOfTen(Math.round(Math.log10(tick)))
                                                        : Number(tick.toPrecision(6)).toLocaleString('en'));

/** About `count` round numbers from low to high. */
function roundTicks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({length: last - first + 1}, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** A log axis for positive values with some `most` labels: powers of ten, 1, 2, 5, or round numbers in a narrow range. */
function logAxis(values, most = window.innerWidth > 600 ? 6 : 3) {
  const positive = values.filter((value) => value > 0);
  if (!positive.length) return {type: 'log'};
  const low = Math.min(...positive), high = Math.max(...positive);
  const room = 0.06 * Math.log10(high / low) || 0.1, range = [Math.log10(low) - room, Math.log10(high) + room];
  const [from, to] = range.map((exponent) => 10 ** exponent), first = Math.floor(range[0]), last = Math.ceil(range[1]);
  const every = Math.ceil((last - first) / most);
  const decades = Array.from({length: last - first + 1}, (_, i) => first + i);
  const inside = (ticks) => ticks.filter((tick) => tick >= from && tick <= to);
  const powers = inside(decades.filter((exponent) => exponent % every === 0).map((exponent) => 10 ** exponent));
  const finer = inside(decades.flatMap((exponent) => [10 ** exponent, 2 * 10 ** exponent, 5 * 10 ** exponent]));
  const ticks = powers.length >= 3 ? powers : finer.length >= 3 && low >= 1e-3 ? finer
    : to / from < 30 && low >= 1e-3 ? roundTicks(from, to, 4) : powers;
  return {type: 'log', range, tickmode: 'array', tickvals: ticks, ticktext: ticks.map(tickText)};
}

/** A dashed line at the training length. The caption names it; a label would cover the curves. */
function trainingLength(length, axis) {
  if (!length) return {};
  const along = axis === 'x' ? {x0: length, x1: length, y0: 0, y1: 1, xref: 'x', yref: 'paper'}
                             : {y0: length, y1: length, x0: 0, x1: 1, yref: 'y', xref: 'paper'};
  return {shapes: [{type: 'line', ...along, layer: 'below', line: {color: theme.colour('muted'), width: 1, dash: 'dash'}}]};
}

/** A button in the caption that switches the y axis between logarithmic and linear. */
function addScaleSwitch(figure, scale, redraw) {
  const button = element('button', {type: 'button', class: 'switch'});
  const name = () => {
    button.textContent = scale.log ? 'linear scale' : 'log scale';
    button.setAttribute('aria-label', `Switch the axis to a ${button.textContent}`);
  };
  button.addEventListener('click', () => { scale.log = !scale.log; name(); redraw(); });
  name();
  figure.querySelector('figcaption').append(button);
}
