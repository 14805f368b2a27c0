// The charts of a shootout. A mixer has the same colour and marker in all of them.
'use strict';

// Plotly's symbols, with their outlines for the legend. Combinations of colour and symbol are unique for 110 mixers.
const symbols = {
  circle: 'M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z', square: 'M-4-4h8v8h-8z', diamond: 'M0-5.2l5.2 5.2l-5.2 5.2l-5.2-5.2z',
  'triangle-up': 'M0-5l5 8.5h-10z', 'triangle-down': 'M0 5l5-8.5h-10z',
  x: 'M-3.5-5L0-1.5L3.5-5L5-3.5L1.5 0L5 3.5L3.5 5L0 1.5L-3.5 5L-5 3.5L-1.5 0L-5-3.5z',
  cross: 'M-1.6-5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z', hourglass: 'M-4.5-4.5h9L-4.5 4.5h9z',
  bowtie: 'M-4.5-4.5v9L4.5-4.5v9z',
  star: 'M0-6l1.4 4.1h4.3l-3.4 2.6l1.3 4.2l-3.6-2.5l-3.6 2.5l1.3-4.2l-3.4-2.6h4.3z',
  pentagon: 'M0-4.8l4.6 3.3l-1.8 5.4h-5.6l-1.8-5.4z',
};
const colourOf = ({index}) => theme.colour('series-' + index % 10);
const symbolOf = ({index}) => Object.keys(symbols)[index % 11];
const dashOf = ({index}) => ['solid', 'dot', 'dash'][Math.floor(index / 10) % 3];

const hidden = new Set();  // indices of the mixers that are switched off in the legend
const visible = (mixers) => mixers.filter(({index}) => !hidden.has(index));

/** One trace; the `text` of a point is shown on hover. */
function mixerTrace(mixer, points, extra = {}) {
  return {
    x: points.map(({x}) => x), y: points.map(({y}) => y), hovertext: points.map(({text}) => text),
    name: plotlyText(mixer.name), mode: 'lines+markers',
    hovertemplate: '<b>%{fullData.name}</b><br>%{hovertext}<extra></extra>',
    line: {color: colourOf(mixer), width: 2, dash: dashOf(mixer)}, ...extra,
    marker: {color: colourOf(mixer), symbol: symbolOf(mixer), size: 8, opacity: 1, ...extra.marker},
  };
}

function legendSample(mixer) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const part = (tag, attributes) => {
    const node = document.createElementNS(svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    svg.append(node);
  };
  svg.setAttribute('viewBox', '-15 -8 30 16');
  svg.setAttribute('aria-hidden', 'true');
  part('path', {d: 'M-15 0H15', stroke: colourOf(mixer), 'stroke-width': 2,
                'stroke-dasharray': {solid: 'none', dot: '2 2', dash: '6 4'}[dashOf(mixer)]});
  part('path', {d: symbols[symbolOf(mixer)], fill: colourOf(mixer)});
  return svg;
}

/** The legend of all charts. A click on a mixer hides or shows it; All and None show or hide every mixer. */
function drawLegend(mixers) {
  const legend = byId('legend');
  const button = (pressed, className, toggle, ...children) => {
    const node = element('button', {type: 'button', class: className, ...pressed}, ...children);
    node.addEventListener('click', () => {
      toggle();
      const at = [...legend.children].indexOf(node);
      draw();
      legend.children[at].focus();
      charts.forEach((drawChart) => drawChart());
    });
    return node;
  };
  const draw = () => {
    const all = hidden.size === 0;
    legend.replaceChildren(...mixers.map((mixer) => {
      const shown = !hidden.has(mixer.index);
      const toggle = () => (shown ? hidden.add(mixer.index) : hidden.delete(mixer.index));
      return button({'aria-pressed': shown}, 'mixer', toggle, legendSample(mixer), mixer.name);
    }), button({}, 'all', () => mixers.forEach(({index}) => (all ? hidden.add(index) : hidden.delete(index))),
               all ? 'None' : 'All'));
  };
  legend.hidden = false;
  draw();
  // The legend is sticky, so linked sections must begin below it.
  document.documentElement.style.setProperty('--legend', legend.offsetHeight + 'px');
  theme.listeners.push(draw);
}

/** A log axis with margins at both ends and the given ticks, fewer of them if their labels would overlap. */
function tickedAxis(values, ticks, format, most) {
  const [low, high] = [Math.log10(values[0]), Math.log10(values[values.length - 1])];
  const room = 0.06 * (high - low) || 0.5, apart = (high - low) / (window.innerWidth > 600 ? most : most / 2);
  const slot = (tick) => Math.floor((Math.log10(tick) - low) / apart + 1e-9);
  const kept = ticks.filter((tick, at) => at === 0 || at === ticks.length - 1 || slot(tick) > slot(ticks[at - 1]));
  return {type: 'log', range: [low - room, high + room], tickmode: 'array', tickvals: kept,
          ticktext: kept.map((tick) => format(tick))};
}

const lengthAxis = (lengths, trained) =>
  tickedAxis(lengths, lengths, (length) => formatMultiple(length, trained, '<br>'), 10);

/** A dotted line at the level of random guessing, which the caption names. */
const chanceLine = (chance) => (!isNumber(chance) ? [] : [{
  type: 'line', layer: 'below', x0: 0, x1: 1, xref: 'paper', y0: chance, y1: chance, yref: 'y',
  line: {color: theme.colour('muted'), width: 1.5, dash: 'dot'}}]);

/** Limits the width of a figure with few points along its axis. */
function narrowWhenFew(id, points) {
  if (points <= 3) byId(id).closest('figure').classList.add('narrow');
}

/** A figure with a chart and its data as a table. */
function chartCard(id, title, note, tableTitle, tableNode) {
  return element('figure', {class: 'card'}, element('figcaption', {}, title, ' ', element('small', {}, note)),
    element('div', {class: 'chart', id}),
    element('details', {}, element('summary', {}, tableTitle), element('div', {class: 'scroll'}, tableNode)));
}

/** A table with a row per mixer; the shade of a cell shows its score. */
function heatTable(mixers, lengths, entry) {
  const result = table(['Mixer', ...lengths.map(formatLength)], mixers.map((mixer) =>
    [mixer.name, ...lengths.map((length) => formatSpread(entry(mixer, length), formatScore))]));
  mixers.forEach((mixer, row) => lengths.forEach((length, column) => {
    const interval = formatInterval(entry(mixer, length));
    if (interval) result.tBodies[0].rows[row].cells[column + 1].append(element('small', {class: 'under'}, interval));
  }));
  mixers.forEach((mixer, row) => lengths.forEach((length, column) => {
    const score = entry(mixer, length)?.mean, cell = result.tBodies[0].rows[row].cells[column + 1];
    if (!isNumber(score)) return;
    cell.className = 'heat';
    cell.style.setProperty('--heat', 50 * score + '%');
  }));
  return result;
}

/** The hover text of a task's point: the spread of several runs, or the exact matches of one. */
function scoreText(mixer, task, entry, trained) {
  const lines = [`${formatMultiple(entry.length, trained, ' tokens, ')}`, 'score ' + formatSpread(entry, formatScore)];
  const measured = (mixer.runs || []).map((run) => atLength(run.tasks?.[task], entry.length)).filter(Boolean);
  if (formatInterval(entry)) lines.push(`95% interval ${formatInterval(entry)}`);
  if (entry.n > 1) lines.push(entry.n + ' seeds');
  else if (measured.length && isNumber(measured[0].exact_match)) {
    const {exact_match: match, instances} = measured[0];
    lines.push(`exact match ${formatScore(match)} of ${formatNumber(instances)}`);
  }
  return lines.join('<br>');
}

/** `lengthOf`: the training length of each task; `chanceOf`: the score of random guessing. */
function drawScores(mixers, lengthOf, chanceOf) {
  for (const [at, task] of namesOf(mixers, (mixer) => mixer.summary?.tasks).entries()) {
    const lengths = taskLengths(mixers, task), trained = lengthOf[task], id = 'chart-score-' + at;
    const entry = (mixer, length) => atLength(taskEntries(mixer, task), length);
    if (!lengths.some((length) => mixers.some((mixer) => isNumber(entry(mixer, length)?.mean)))) continue;
    if (byId('scores').hidden) show('scores');
    byId('score-charts').append(chartCard(id, task, 'score, by length' +
      (isNumber(chanceOf[task]) ? `; chance ${formatScore(chanceOf[task])}` : ''), 'As a heat map',
                                          heatTable(mixers, lengths, entry)));
    byId(id).dataset.task = task;
    narrowWhenFew(id, lengths.length);
    const highest = Math.max(...mixers.flatMap((mixer) => lengths.map((length) => entry(mixer, length)))
      .map((one) => one?.interval_95?.[1] ?? one?.mean ?? 0), chanceOf[task] || 0);
    const top = highest < 0.5 ? Math.max(1.2 * highest, 0.02) : 1.04;  // so that low scores are distinguishable
    addChart(id, `Score of ${task} by length; the table below has the numbers`, () => ({
      traces: visible(mixers).map((mixer) => {
        const entries = lengths.map((length) => entry(mixer, length)).filter(Boolean);
        return mixerTrace(mixer, entries.map((one) => (
          {x: one.length, y: one.mean, text: scoreText(mixer, task, one, trained)})), {
          error_y: {type: 'data', symmetric: false, thickness: 1.2, width: 3,
                    visible: entries.some(({interval_95: ends}) => ends?.every(isNumber)),
                    array: entries.map(({mean, interval_95: ends}) => (ends ? Math.max(ends[1] - mean, 0) : 0)),
                    arrayminus: entries.map(({mean, interval_95: ends}) => (ends ? Math.max(mean - ends[0], 0) : 0))},
        });
      }),
      layout: {xaxis: lengthAxis(lengths, trained), yaxis: {range: [-0.04 * top, top], tickformat: '~%'},
               shapes: [...(trainingLength(trained, 'x').shapes || []), ...chanceLine(chanceOf[task])]},
    }));
  }
}

const lossAxis = (losses) => (spans(losses, 10) ? logAxis(losses, 5) : {});

function drawTrainingCurves(mixers) {
  const curves = (mixer) => (mixer.runs || []).filter(({curve}) => curve?.loss?.some(isNumber));
  if (!mixers.some((mixer) => curves(mixer).length)) return;
  show('curves');
  const points = ({curve, seed}) => {
    const kept = curve.loss.map((_, at) => at).filter((at) => isNumber(curve.loss[at]) && isNumber(curve.tokens[at]));
    const smoothed = smooth(kept.map((at) => curve.loss[at]), Math.round(kept.length / 60));
    return kept.map((at, i) => ({x: curve.tokens[at], y: smoothed[i],
      text: `${formatCount(curve.tokens[at])} tokens, seed ${seed}<br>loss ${formatNats(smoothed[i])}`}));
  };
  addChart('chart-curves', 'Training loss of every mixer over the tokens read', () => {
    const traces = visible(mixers).flatMap((mixer) => curves(mixer).map((run) =>
      mixerTrace(mixer, points(run), {
        line: {color: colourOf(mixer), width: curves(mixer).length > 1 ? 1 : 2, dash: dashOf(mixer)},
        marker: {maxdisplayed: 8},
      })));
    const losses = traces.flatMap(({y}) => y);
    return {traces, layout: {xaxis: {title: {text: 'tokens'}, tickformat: '~s', rangemode: 'tozero'},
                             yaxis: lossAxis(losses)}};
  });
}

/** The bins of positions of all runs, each with its mean loss. */
function meanByPosition(runs, source) {
  const groups = new Map();
  for (const {first, last, tokens = 1, loss} of runs.flatMap((run) => run.by_position?.[source] || [])) {
    if (!isNumber(loss)) continue;
    const group = groups.get(first) || {first, last, tokens: 0, sum: 0};
    groups.set(first, {...group, tokens: group.tokens + tokens, sum: group.sum + tokens * loss});
  }
  return [...groups.values()].map(({first, last, tokens, sum}) => ({first, last, loss: sum / tokens}));
}

/** `chanceOf`: the loss of random guessing, for each source that has one. */
function drawPositions(mixers, chanceOf) {
  const sources = namesOf(mixers, (mixer) => Object.assign({}, ...(mixer.runs || []).map((run) => run.by_position)));
  for (const [at, source] of sources.entries()) {
    const groups = mixers.map(({runs}) => meanByPosition(runs || [], source));
    const firsts = [...new Map(groups.flat().map((group) => [group.first, group])).values()]
      .sort((a, b) => a.first - b.first);
    if (!firsts.length) continue;
    if (byId('positions').hidden) show('positions');
    const label = ({first, last}) => (first === last ? String(first) : `${first}–${last}`);
    const id = 'chart-position-' + at;
    const lossAt = (row, first) => groups[row].find((group) => group.first === first)?.loss;
    byId('position-charts').append(chartCard(id, source, 'validation loss, by position in the text' +
      (isNumber(chanceOf[source]) ? `; dotted: chance, ${formatNats(chanceOf[source])}` : ''), 'As a table',
      table(['Mixer', ...firsts.map(label)], mixers.map(({name}, row) =>
        [name, ...firsts.map(({first}) => formatSpread({mean: lossAt(row, first)}, formatNats))]))));
    narrowWhenFew(id, firsts.length);
    // Positions are counted from 1, because 0 has no logarithm; a bin is drawn at its middle.
    const middle = ({first, last}) => Math.sqrt((first + 1) * (last + 1));
    const firstOf = new Map(firsts.map((group) => [middle(group), formatLength(group.first)]));
    addChart(id, `Validation loss of ${source} by position; the table below has the numbers`, () => ({
      traces: visible(mixers).map((mixer) => mixerTrace(mixer, groups[mixer.index].map((group) => (
        {x: middle(group), y: group.loss, text: `positions ${label(group)}<br>loss ${formatNats(group.loss)}`})))),
      layout: {xaxis: {...tickedAxis(firsts.map(middle), firsts.map(middle), (x) => firstOf.get(x), 12),
                       title: {text: 'position, from'}}, shapes: chanceLine(chanceOf[source]),
               yaxis: lossAxis([...groups.flat().map(({loss}) => loss), chanceOf[source]].filter(isNumber))},
    }));
  }
}

/** Loss against learning rate. Diverged runs have no loss and are drawn on a separate line above the others. */
function drawRates(mixers) {
  const rates = valuesOf(mixers, (mixer) => mixer.search?.map(({lr}) => lr));
  const tried = (mixer, lr) => (mixer.search || []).find((run) => run.lr === lr);
  const losses = mixers.flatMap(({search = []}) => search.map(({loss}) => loss)).filter(isNumber);
  const ended = (mixer) => (mixer.search || []).filter(({status}) => status === 'diverged');
  if (!losses.length && !mixers.some((mixer) => ended(mixer).length)) return;
  show('rates');
  const [least, most] = losses.length ? [Math.min(...losses), Math.max(...losses)] : [0, 1];
  const wide = spans(losses, 10), above = wide ? most * (most / least) ** 0.12 : most + 0.12 * (most - least || most);
  // Runs that diverged at the same rate are drawn side by side.
  const step = (rates[rates.length - 1] / rates[0]) ** (window.innerWidth > 600 ? 0.012 : 0.035);
  const beside = (mixer, lr) => {
    const all = mixers.filter((other) => ended(other).some((run) => run.lr === lr));
    return lr * step ** (all.indexOf(mixer) - (all.length - 1) / 2);
  };
  const word = (mixer, run) => {
    if (!run) return '–';
    const chosen = run.lr !== mixer.chosen_lr ? '' : mixer.lr_edge ? `, chosen, ${mixer.lr_edge} of the grid` : ', chosen';
    return isNumber(run.loss) ? formatNats(run.loss) + chosen : run.status;
  };
  narrowWhenFew('chart-rates', rates.length);
  addChart('chart-rates', 'Loss by learning rate; the table below has the numbers', () => ({
    traces: visible(mixers).flatMap((mixer) => {
      const text = (run) => `learning rate ${run.lr}<br>${isNumber(run.loss) ? 'loss ' : ''}${word(mixer, run)}`;
      const measured = rates.map((lr) => tried(mixer, lr)).filter((run) => isNumber(run?.loss));
      const chosen = measured.map(({lr}) => lr === mixer.chosen_lr);
      const ring = {size: chosen.map((is) => (is ? 12 : 8)),
                    line: {color: theme.colour('text'), width: chosen.map((is) => (is ? 2 : 0))}};
      return [
        mixerTrace(mixer, measured.map((run) => ({x: run.lr, y: run.loss, text: text(run)})), {marker: ring}),
        mixerTrace(mixer, ended(mixer).map((run) => ({x: beside(mixer, run.lr), y: above, text: text(run)})),
                   {mode: 'markers', marker: {size: 9}}),
      ];
    }),
    layout: {
      xaxis: {...tickedAxis(rates, rates, String, 10), title: {text: 'learning rate'}},
      yaxis: lossAxis([...losses, above]),
      annotations: mixers.some((mixer) => ended(mixer).length) ? [{
        text: 'diverged', x: 0, xref: 'paper', xanchor: 'left', y: wide ? Math.log10(above) : above, yanchor: 'middle',
        showarrow: false, font: {size: 11, color: theme.colour('muted')}}] : [],
    },
  }));
  byId('table-rates').append(table(['Mixer', ...rates.map(String)],
    mixers.map((mixer) => [mixer.name, ...rates.map((lr) => word(mixer, tried(mixer, lr)))])));
}
