// Evaluation results: every eval/NAME.json of one or several runs, as charts and tables.
'use strict';

const isTask = (found) => Array.isArray(found?.cells) && Array.isArray(found.by_length) && found.by_length.length > 0;
const isLoss = (found) => isNumber(found?.nats_per_token);
const intervalText = (wilson) => (wilson?.every(isNumber) ? wilson.map((end) => formatPercent(end, 1)).join(' to ') : '–');

/** {title, index, found} of each run that has an evaluation with this name and kind. */
const evaluated = (runs, name, kind) => runs.map(({title, evals}, index) => ({title, index, found: evals?.[name]}))
  .filter(({found}) => found && kind(found));

/** A card with a table; if `id` is given, with a chart above the table, which is then collapsed. */
function evalCard(title, note, id, ...tables) {
  const chart = id ? element('div', {class: 'chart', id}) : null;
  const scrolled = tables.map((node) => element('div', {class: 'scroll'}, node));
  return element('figure', {class: 'card'}, element('figcaption', {}, title + ' ', element('small', {}, note)), chart,
    ...(id ? [element('details', {}, element('summary', {}, 'As a table'), ...scrolled)] : scrolled));
}

function drawEvaluations(runs) {
  const names = [...new Set(runs.flatMap(({evals}) => Object.keys(evals || {})))].sort();
  if (!names.length) return;
  show('evaluation');
  if (names.some((name) => name.split('.')[0] === 'abc_digits')) byId('evaluation-note').textContent =
    'ABCDigits: the prompt assigns a six-digit number to each of 26 letters and asks for one of them.';
  names.forEach((name, at) => {
    const tasks = evaluated(runs, name, isTask), losses = evaluated(runs, name, isLoss);
    if (tasks.length) drawTask(name, tasks, at, runs.length > 1);
    if (losses.length) drawLosses(name, losses, at, runs.length > 1);
    for (const {title, found} of evaluated(runs, name, (other) => !isTask(other) && !isLoss(other))) {
      byId('evaluation-grid').append(evalCard(name, title, '', settings(found)));
    }
  });
}

/** The title of an evaluation: its task, and what --set-model changed. */
function taskTitle({task, model_changes: changes}) {
  return [{abc_digits: 'ABCDigits', loss: 'Loss'}[task] || task, ...Object.entries(changes || {}).map(([key, value]) => `${key}=${value}`)].join(', ');
}

const conditions = (task) => `${task.instances} instances a cell, windows ${
  task.expand_windows ? 'expanded beyond the training length' : 'as trained'}`;

function drawTask(name, runs, at, several) {
  for (const {title, index, found} of runs)
    if (found.depths?.length > 1) drawDepths(name, found, several ? title + ': ' : '', `chart-eval-${at}-${index}`);
  const oneGrid = runs.length === 1 && runs[0].found.depths?.length > 1;
  if (oneGrid) return;
  const lengths = [...new Set(runs.flatMap(({found}) => found.by_length.map(({length}) => length)))].sort((a, b) => a - b);
  const cellOf = (found, length) => found.by_length.find((cell) => cell.length === length);
  const scoreText = (cell) => {
    if (!cell) return '–';
    const exact = cell.score === cell.exact_match ? '' : `, exact match ${formatPercent(cell.exact_match, 1)}`;
    return `${formatPercent(cell.score, 1)}${exact} (${intervalText(cell.wilson_95)})`;
  };
  const id = `chart-eval-${at}`, rows = table(['Run', ...lengths.map((length) => length.toLocaleString('en'))],
    runs.map(({title, found}) => [title, ...lengths.map((length) => scoreText(cellOf(found, length)))]));
  const note = `score by length, ${conditions(runs[0].found)}; bars and brackets: 95% Wilson intervals of the exact match`;
  byId('evaluation-grid').append(evalCard(taskTitle(runs[0].found), note, lengths.length > 1 ? id : '', rows));
  if (lengths.length < 2) return;
  addChart(id, `Score of ${taskTitle(runs[0].found)} by length; the table below has the numbers`, () => ({
    traces: runs.map(({title, index, found}) => {
      const cells = lengths.map((length) => cellOf(found, length)).filter(Boolean);
      const exact = cells.every((cell) => cell.score === cell.exact_match);
      return {x: cells.map(({length}) => length), y: cells.map(({score}) => score), name: plotlyText(title),
              mode: 'lines+markers', line: {color: runColour(index), width: 2}, marker: {size: 7},
              text: cells.map(scoreText), hovertemplate: `<b>${plotlyText(title)}</b><br>%{x:,} tokens<br>%{text}<extra></extra>`,
              error_y: exact ? {type: 'data', symmetric: false, thickness: 1.2, width: 3,
                                array: cells.map(({score, wilson_95: [, high]}) => Math.max(high - score, 0)),
                                arrayminus: cells.map(({score, wilson_95: [low]}) => Math.max(score - low, 0))}
                             : undefined};
    }),
    layout: {xaxis: {...tickedLengths(lengths), title: {text: 'length, tokens'}},
             yaxis: {range: [-0.04, 1.04], tickformat: '.0%'}},
  }));
}

/** A log axis of lengths with a tick at each length, if the labels do not overlap. */
function tickedLengths(lengths) {
  const [low, high] = [Math.log10(lengths[0]), Math.log10(lengths[lengths.length - 1])];
  const room = 0.06 * (high - low) || 0.5, apart = (high - low) / (window.innerWidth > 600 ? 8 : 4);
  const ticks = lengths.filter((length, at) => at === 0 || at === lengths.length - 1 ||
    (Math.log10(length / lengths[0]) > 0.7 * apart && Math.log10(lengths[lengths.length - 1] / length) > 0.7 * apart));
  return {type: 'log', range: [low - room, high + room], tickmode: 'array', tickvals: ticks,
          ticktext: ticks.map((tick) => tick.toLocaleString('en'))};
}

/** Exact match by length and depth as a heat map and a table. */
function drawDepths(name, task, title, id) {
  const {lengths, depths} = task;
  const cellOf = (length, depth) => task.cells.find((cell) => cell.length === length && cell.depth === depth);
  const interval = ({wilson_95: wilson}) => intervalText(wilson);
  const names = lengths.map((length) => length.toLocaleString('en')), marks = depths.map((depth) => formatPercent(depth));
  const grid = depths.map((depth) => lengths.map((length) => cellOf(length, depth)));
  const rows = table(['Length', ...marks.map((depth) => 'Depth ' + depth)], names.map((length, l) =>
    [length, ...grid.map((row) => (row[l] ? `${row[l].correct} of ${row[l].instances} (${interval(row[l])})` : '–'))]));
  const card = evalCard(title + taskTitle(task), `exact match, by length and depth; ${conditions(task)}`, id, rows);
  card.querySelector('summary').textContent = 'As a table, with 95% Wilson intervals';
  byId('evaluation-grid').append(card);
  byId(id).dataset.task = name;
  addChart(id, `${title}Exact match of ${taskTitle(task)} by length and depth; the table below has the numbers`, () => ({
    traces: [{
      type: 'heatmap', x: names, y: marks, zmin: 0, zmax: 1, colorscale: 'Viridis', xgap: 2, ygap: 2,
      z: grid.map((row) => row.map((cell) => (cell ? cell.exact_match : null))),
      text: grid.map((row) => row.map((cell) => (cell ? formatPercent(cell.exact_match) : ''))),
      customdata: grid.map((row) => row.map((cell) =>
        (cell ? `${cell.correct} of ${cell.instances}<br>95% Wilson interval ${interval(cell)}` : ''))),
      texttemplate: '%{text}', hoverongaps: false, showscale: false,
      hovertemplate: '%{x} tokens, depth %{y}<br><b>%{text}</b>, %{customdata}<extra></extra>',
    }],
    layout: {
      xaxis: {type: 'category', title: {text: 'length, tokens'}, showgrid: false, fixedrange: true},
      yaxis: {type: 'category', title: {text: 'depth of the answer'}, showgrid: false, autorange: 'reversed',
              fixedrange: true},
    },
  }));
}

/** `tamis eval loss`: the loss of texts, in total and by position. */
function drawLosses(name, runs, at, several) {
  const filesOf = ({file, files}) => files || (file ? [file] : []);
  const differ = new Set(runs.map(({found}) => JSON.stringify([filesOf(found), Boolean(found.middle)]))).size > 1;
  const nameOf = (found) => {
    const files = filesOf(found), texts = found.texts || 1;
    const what = texts === 1 ? files[0] || 'a text' : `${texts} texts`;
    return (found.middle ? 'the middle of ' : '') + what;
  };
  const totals = table(['Run', 'nats per token', 'nats per byte', 'perplexity', 'tokens', 'window', ...(differ ? ['text'] : [])],
    runs.map(({title, found}) => [title, formatLoss(found.nats_per_token), formatLoss(found.nats_per_byte),
      formatNumber(found.perplexity, 4), formatNumber(found.tokens), formatNumber(found.window_tokens),
      ...(differ ? [nameOf(found)] : [])]));
  const text = `of ${differ ? 'texts' : nameOf(runs[0].found)}`;
  const binned = runs.filter(({found}) => found.by_position?.length > 1);
  const id = binned.length ? `chart-eval-${at}` : '';
  const label = ({first, last}) => (first === last ? String(first) : `${first}–${last}`);
  const bins = [...new Map(binned.flatMap(({found}) => found.by_position).map((bin) => [label(bin), bin])).values()]
    .sort((a, b) => a.first - b.first);
  const positions = table(['Position', ...binned.map(({title}) => title)], bins.map((bin) => [label(bin),
    ...binned.map(({found}) => {
      const own = found.by_position.find((other) => label(other) === label(bin));
      return own ? formatLoss(own.loss) : '–';
    })]));
  const card = evalCard(taskTitle(runs[0].found), text + (id ? ', nats per token by the number of preceding tokens' : ''), id,
                        id ? positions : totals);
  if (id) byPosition(card).before(element('div', {class: 'scroll'}, totals));
  if (differ) card.append(element('p', {class: 'note'}, 'The texts differ, so these losses are not comparable.'));
  byId('evaluation-grid').append(card);
  if (!id) return;
  // Powers of two are drawn over logarithms, at their middle, counted from 1, because 0 has none; evenly spaced points
  // over positions.
  const even = binned.some(({found}) => found.points);
  const middle = ({first, last}) => (even ? (first + last) / 2 : Math.sqrt((first + 1) * (last + 1)));
  const curveOf = (found) => found.points || found.by_position;
  const losses = binned.flatMap(({found}) => curveOf(found).map(({loss}) => loss));
  const axis = even ? {} : tickedLengths(bins.map(middle));
  if (!even) axis.ticktext = axis.tickvals.map((tick) => bins.find((bin) => middle(bin) === tick).first.toLocaleString('en'));
  addChart(id, `Loss by position; the tables below have ${even ? 'it by powers of two' : 'the numbers'}`, () => ({
    traces: binned.map(({title, index, found}) => ({
      x: curveOf(found).map(middle), y: curveOf(found).map(({loss}) => loss), name: plotlyText(title),
      mode: found.points ? 'lines' : 'lines+markers', line: {color: runColour(index), width: 2}, marker: {size: 6},
      text: curveOf(found).map((bin) => `positions ${label(bin)}<br>loss ${formatLoss(bin.loss)}`),
      hovertemplate: `${several ? `<b>${plotlyText(title)}</b><br>` : ''}%{text}<extra></extra>`})),
    layout: {xaxis: {...axis, title: {text: even ? 'position' : 'position, from'}}, yaxis: spans(losses, 10) ? logAxis(losses) : {}},
  }));
}

/** Sets the title of a card's collapsed table and returns the table. */
function byPosition(card) {
  const details = card.querySelector('details');
  details.querySelector('summary').textContent = 'By position, as a table';
  return details;
}
