// The charts, drawn by Plotly.
'use strict';

const charts = [];  // functions that draw a chart again, for another theme
const drawn = [];   // promises of the first drawings

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

/** Draws `make() -> {traces, layout}` into #id now and whenever the theme changes. */
function addChart(id, label, make) {
  const node = byId(id);
  node.setAttribute('role', 'img');
  node.setAttribute('aria-label', label);
  const draw = () => {
    const {traces, layout} = make();
    return Plotly.react(node, traces, chartLayout(layout), {responsive: true, displayModeBar: false});
  };
  charts.push(draw);
  drawn.push(draw());
}

const steps = {title: {text: 'step'}, tickformat: '~s', rangemode: 'tozero'};

/** Mean over a window of 2 radius + 1 points, shorter at the ends. */
function smooth(values, radius) {
  const sums = [0];
  for (const value of values) sums.push(sums[sums.length - 1] + value);
  return values.map((_, i) => {
    const low = Math.max(0, i - radius), high = Math.min(values.length, i + radius + 1);
    return (sums[high] - sums[low]) / (high - low);
  });
}

/** One series as a pale raw line below a smooth one. */
function line(series, name, colour) {
  const radius = Math.round(series.y.length / 60);
  const raw = {x: series.x, y: series.y, name, mode: 'lines', hoverinfo: radius ? 'skip' : 'all', showlegend: !radius,
               line: {color: colour, width: radius ? 1 : 2}, opacity: radius ? 0.3 : 1,
               hovertemplate: 'step %{x:,}<br>' + name + ' %{y:.4g}<extra></extra>'};
  if (!radius) return [raw];
  return [raw, {...raw, y: smooth(series.y, radius), opacity: 1, showlegend: true, hoverinfo: 'all',
                line: {color: colour, width: 2}}];
}

function spans(values, factor) {
  const positive = values.filter((value) => value > 0);
  return Math.max(...positive) > factor * Math.min(...positive);
}

/** A log axis for positive values, labelled at 1, 2, 5, 10, ..., or at powers of ten when these are more than `most`. */
function logAxis(values, most = window.innerWidth > 600 ? 6 : 3) {
  const exponents = values.filter((value) => value > 0).map(Math.log10);
  const low = Math.floor(Math.min(...exponents)), high = Math.ceil(Math.max(...exponents));
  const decades = Array.from({length: high - low + 2}, (_, i) => 10 ** (low + i));
  const ticks = decades.length > most ? decades : decades.flatMap((decade) => [decade, 2 * decade, 5 * decade]);
  return {type: 'log', tickmode: 'array', tickvals: ticks, ticktext: ticks.map((tick) =>
    (tick >= 1 ? tick.toLocaleString('en') : String(Number(tick.toPrecision(1)))))};
}

function drawCurves(training) {
  const {loss, validation = {}} = training;
  const sources = Object.entries(validation);
  const colours = ['orange', 'green', 'purple', 'muted'];
  if (loss || sources.length) addChart('chart-loss', 'Training and validation loss over the steps', () => ({
    traces: [...(loss ? line(loss, 'training', theme.colour('blue')) : []), ...sources.map(([source, series], index) => ({
      x: series.x, y: series.y, name: 'validation, ' + plotlyText(source), mode: 'lines+markers',
      line: {color: theme.colour(colours[index % colours.length]), width: 2}, marker: {size: 5},
      hovertemplate: 'step %{x:,}<br>' + plotlyText(source) + ' %{y:.4f}<extra></extra>',
    }))],
    layout: {xaxis: steps, showlegend: sources.length > 0, margin: {t: 26}},
  }));
  else byId('chart-loss').closest('figure').remove();
  for (const [id, key, name, colour, label] of [
    ['chart-gradient', 'grad_norm', 'gradient norm', 'blue', 'Gradient norm over the steps'],
    ['chart-rate', 'lr', 'learning rate', 'green', 'Learning rate over the steps'],
    ['chart-speed', 'tokens_per_second', 'tokens/s', 'purple', 'Tokens per second over the steps'],
  ]) {
    const series = training[key];
    if (!series) { byId(id).closest('figure').remove(); continue; }
    const wide = key === 'grad_norm' && spans(series.y, 30);
    addChart(id, label, () => ({
      traces: key === 'lr' ? [{...line(series, name, theme.colour(colour))[0], opacity: 1, showlegend: false,
                               hoverinfo: 'all', line: {color: theme.colour(colour), width: 2}}]
                           : line(series, name, theme.colour(colour)),
      layout: {xaxis: steps, yaxis: wide ? logAxis(series.y) : {rangemode: 'tozero', tickformat: key === 'lr' ? '' : '~s'}},
    }));
  }
}

/** One trace a layer, its heads separated by gaps. */
function tileTraces(history, key, layers) {
  const traces = [];
  for (let layer = 0; layer < layers; ++layer) {
    const x = [], y = [], text = [];
    for (let head = 0; head < history[key][0][layer].length; ++head) {
      history.step.forEach((step, at) => {
        const value = history[key][at][layer][head];
        x.push(step);
        y.push(value);
        text.push('layer ' + layer + ', head ' + head);
      });
      x.push(null); y.push(null); text.push('');
    }
    traces.push({x, y, text, mode: history.step.length > 1 ? 'lines' : 'markers', connectgaps: false,
                 line: {color: layerColour(layer, layers), width: 1.5}, marker: {color: layerColour(layer, layers)},
                 hovertemplate: '%{text}<br>step %{x:,}<br>%{y:.4g}<extra></extra>'});
  }
  return traces;
}

/** A dashed line at the training length; `log`: on a log axis, where a shape counts in powers of ten. */
function trainingLength(length, axis) {
  if (!length) return {};
  const along = axis === 'x' ? {x0: length, x1: length, y0: 0, y1: 1, xref: 'x', yref: 'paper'}
                             : {y0: length, y1: length, x0: 0, x1: 1, yref: 'y', xref: 'paper'};
  const at = axis === 'x' ? {x: Math.log10(length), y: 1, xref: 'x', yref: 'paper', xanchor: 'left', yanchor: 'top'}
                          : {y: Math.log10(length), x: 1, yref: 'y', xref: 'paper', xanchor: 'right', yanchor: 'bottom'};
  return {
    shapes: [{type: 'line', ...along, line: {color: theme.colour('muted'), width: 1, dash: 'dash'}}],
    annotations: [{...at, text: 'training length ' + length.toLocaleString('en'), showarrow: false,
                   font: {size: 11, color: theme.colour('muted')}, bgcolor: theme.colour('card'), borderpad: 1}],
  };
}

function drawTileHistory(history, layers, length) {
  const windows = history.windows.flat(2).filter(isNumber);
  addChart('chart-windows', 'Screening window of every tile over the steps', () => ({
    traces: tileTraces(history, 'windows', layers),
    layout: {xaxis: steps, yaxis: logAxis(windows), ...(Math.max(...windows) > length / 4 ? trainingLength(length, 'y') : {})},
  }));
  addChart('chart-accepts', 'Acceptance width of every tile over the steps', () => ({
    traces: tileTraces(history, 'accepts', layers),
    layout: {xaxis: steps, yaxis: {range: [0, 1.02]}},
  }));
}

function drawScatter(tiles, layers, length) {
  addChart('chart-scatter', 'Window and acceptance width of every tile', () => ({
    traces: [{
      x: tiles.map((tile) => tile.window), y: tiles.map((tile) => tile.accept), mode: 'markers', type: 'scatter',
      text: tiles.map((tile) => 'layer ' + tile.layer + ', head ' + tile.head),
      marker: {size: tiles.length > 400 ? 6 : 10, color: tiles.map((tile) => layerColour(tile.layer, layers)),
               line: {color: theme.colour('card'), width: 1}},
      hovertemplate: '%{text}<br>w = %{x:,.1f} tokens<br>r = %{y:.3f}<extra></extra>',
    }],
    layout: {
      margin: {t: 20},
      xaxis: {...logAxis(tiles.map((tile) => tile.window)), title: {text: 'screening window w, tokens'}},
      yaxis: {range: [0, 1.02], title: {text: 'acceptance width r'}}, ...trainingLength(length, 'x'),
    },
  }));
}

/** The grid of one run, as a figure of its own: #chart-abc, #chart-abc-1, ... */
function drawRetrieval(abc, title, note, number) {
  const id = 'abc' + (number ? '-' + number : '');
  byId('retrieval-grids').append(element('figure', {class: 'card'},
    element('figcaption', {}, 'ABCDigits ', element('small', {}, title + 'exact match, by length and depth; ' + note)),
    element('div', {class: 'chart', id: 'chart-' + id}),
    element('details', {}, element('summary', {}, 'As a table, with 95% Wilson intervals'),
      element('div', {class: 'scroll', id: 'table-' + id}))));
  const names = abc.lengths.map((length) => length.toLocaleString('en'));
  const depths = abc.depths.map((depth) => formatPercent(depth));
  const grid = abc.depths.map((depth) => abc.lengths.map((length) =>
    abc.cells.find((cell) => cell.length === length && cell.depth === depth)));
  const interval = ({wilson_95: [low, high]}) => formatPercent(low, 1) + ' to ' + formatPercent(high, 1);
  addChart('chart-' + id, title + 'Exact match of ABCDigits by length and depth; the table below has the numbers', () => ({
    traces: [{
      type: 'heatmap', x: names, y: depths, zmin: 0, zmax: 1, colorscale: 'Viridis', xgap: 2, ygap: 2,
      z: grid.map((row) => row.map((cell) => (cell ? cell.exact_match : null))),
      text: grid.map((row) => row.map((cell) => (cell ? formatPercent(cell.exact_match) : ''))),
      customdata: grid.map((row) => row.map((cell) =>
        (cell ? `${cell.correct} of ${cell.instances}<br>95% Wilson interval ${interval(cell)}` : ''))),
      texttemplate: '%{text}', hoverongaps: false, showscale: window.innerWidth > 600,
      hovertemplate: '%{x} tokens, depth %{y}<br><b>%{text}</b>, %{customdata}<extra></extra>',
      colorbar: {thickness: 12, outlinewidth: 0, tickformat: '.0%', tickfont: {color: theme.colour('muted')}},
    }],
    layout: {
      xaxis: {type: 'category', title: {text: 'length, tokens'}, showgrid: false, fixedrange: true},
      yaxis: {type: 'category', title: {text: 'depth of the answer'}, showgrid: false, autorange: 'reversed',
              fixedrange: true},
    },
  }));
  byId('table-' + id).append(table(['Length', ...depths.map((depth) => 'Depth ' + depth)],
    names.map((name, l) => [name, ...grid.map((row) =>
      (row[l] ? `${row[l].correct} of ${row[l].instances} (${interval(row[l])})` : '–'))])));
}
