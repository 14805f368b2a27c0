// The training curves of one or several runs: `runs` is [{title, training, model, ...}]; the first is the page's run.
'use strict';

const runColour = (index) => theme.colour('series-' + index % 10);

/** The progress of a run at a step: in steps, or in tokens if the runs have different numbers of tokens per step. */
function progressOf(runs) {
  const tokens = ({training}) => training && training.tokens / training.steps;
  const known = runs.filter(({training}) => training).map(tokens);
  const same = new Set(known.map((value) => value.toPrecision(6))).size < 2 || !known.every(isNumber);
  return same ? {unit: 'step', of: () => 1} : {unit: 'token', of: tokens};
}

function drawCurves(runs) {
  const trained = runs.map((run, index) => ({...run, index})).filter(({training}) => training);
  const progress = progressOf(trained), several = runs.length > 1;
  const along = (run, series) => ({x: series.x.map((step) => step * progress.of(run)), y: series.y, unit: progress.unit});
  const xaxis = {title: {text: progress.unit === 'step' ? 'step' : 'tokens read'}, tickformat: '~s', rangemode: 'tozero'};
  const validations = ({training}) => Object.entries(training.validation || {});

  const losses = trained.flatMap(({training}) => [...(training.loss?.y || []),
    ...Object.values(training.validation || {}).flatMap(({y}) => y)]);
  const scale = {log: spans(losses, 20)};
  const lossTraces = () => trained.flatMap((run) => {
    const colour = several ? runColour(run.index) : theme.colour('blue');
    const sourceColours = ['orange', 'green', 'purple', 'muted'];
    const of = several ? run.title + ', ' : '';
    return [...(run.training.loss ? line(along(run, run.training.loss), of + 'training', colour) : []),
      ...validations(run).map(([source, series], at) => {
        const {x, y} = along(run, series);
        return {x, y, name: plotlyText(`${of}validation, ${source}`), mode: 'lines+markers',
                line: {color: several ? colour : theme.colour(sourceColours[at % 4]), width: several ? 1.5 : 2,
                       dash: several ? ['dot', 'dash', 'dashdot'][at % 3] : 'solid'},
                marker: {size: 5, symbol: several ? Object.keys(sourceSymbols)[at % 4] : 'circle'},
                hovertemplate: `${progress.unit} %{x:,}<br>${plotlyText(of + source)} %{y:.4g}<extra></extra>`};
      })];
  });
  if (losses.length) {
    const redraw = addChart('chart-loss', 'Training and validation loss', () => ({
      traces: lossTraces(),
      layout: {xaxis, yaxis: scale.log ? logAxis(losses) : {rangemode: 'normal', type: 'linear'},
               showlegend: !several && trained.some((run) => validations(run).length > 0), margin: {t: several ? 8 : 30}},
    }));
    addScaleSwitch(byId('chart-loss').closest('figure'), scale, redraw);
    if (several) byId('loss-note').textContent = 'nats per token; lines: training, markers: validation' +
      (Math.max(...trained.map((run) => validations(run).length)) > 1 ? ', a marker for each source' : '');
  } else {
    byId('chart-loss').closest('figure').remove();
  }

  const groupsOf = ({training}) => (several ? [] : Object.entries(training.grad_norms || {}));
  const groupTraces = (run) => groupsOf(run).map(([group, series], at) =>
    ({...line(along(run, series), group, runColour(at)).at(-1), line: {color: runColour(at), width: 1}}));
  if (trained.some((run) => groupsOf(run).length)) byId('gradient-note').textContent = 'thin: of groups of parameters';

  for (const [id, key, name, colour, label] of [
    ['chart-gradient', 'grad_norm', 'gradient norm', 'blue', 'Gradient norm over training'],
    ['chart-rate', 'lr', 'learning rate', 'green', 'Learning rate over training'],
    ['chart-speed', 'tokens_per_second', 'tokens/s', 'purple', 'Tokens per second over training'],
  ]) {
    const having = trained.filter(({training}) => training[key]?.y.length);
    if (!having.length) { byId(id).closest('figure').remove(); continue; }
    const norms = key === 'grad_norm', wholes = having.flatMap(({training}) => training[key].y);
    const values = norms ? [...wholes, ...having.flatMap(groupsOf).flatMap(([, series]) => series.y)] : wholes;
    const wide = norms && spans(values, 30);
    const whole = (run) => {  // without smoothing
      const [first, ...rest] = line(along(run, run.training[key]), run.title, 'black');
      return [{...first, ...rest[0], y: run.training[key].y}];
    };
    addChart(id, label, () => ({
      traces: having.flatMap((run) => {
        const own = several ? runColour(run.index) : theme.colour(colour);
        const named = several ? `${run.title}, ${name}` : name;
        const groups = norms ? groupTraces(run) : [];
        return key === 'lr' ? whole(run).map((trace) => ({...trace, name: plotlyText(named), line: {color: own, width: 2}}))
                            : [...groups, ...line(along(run, run.training[key]), named, own)];
      }),
      layout: {xaxis, yaxis: wide ? logAxis(values) : {rangemode: 'tozero', tickformat: key === 'lr' ? '' : '~s'}},
    }));
  }
}

// Line styles of the validation sources in charts of several runs.
const sourceSymbols = {circle: '', square: '', diamond: '', x: ''};

/** One trace per layer, with gaps between its heads. */
function tileTraces(history, key, layers) {
  const traces = [];
  for (let layer = 0; layer < layers; ++layer) {
    const x = [], y = [], text = [];
    const heads = history[key][0][layer]?.length ?? 0;  // none in layers without screening
    if (!heads) continue;
    for (let head = 0; head < heads; ++head) {
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

const dashedNote = (length) => `; dashed: the training length, ${length.toLocaleString('en')}`;

function drawTileHistory(history, layers, length) {
  const windows = history.windows.flat(2).filter(isNumber), shown = length && Math.max(...windows) > length / 4;
  const xaxis = {title: {text: 'step'}, tickformat: '~s', rangemode: 'tozero'};
  if (shown) byId('windows-note').textContent += dashedNote(length);
  addChart('chart-windows', 'Screening window of every head over the steps', () => ({
    traces: tileTraces(history, 'windows', layers),
    layout: {xaxis, yaxis: logAxis(shown ? [...windows, length] : windows), ...(shown ? trainingLength(length, 'y') : {})},
  }));
  addChart('chart-accepts', 'Acceptance width of every head over the steps', () => ({
    traces: tileTraces(history, 'accepts', layers),
    layout: {xaxis, yaxis: {range: [0, 1.02]}},
  }));
}

function drawScatter(tiles, layers, length) {
  if (length) byId('scatter-note').textContent += dashedNote(length);
  const windows = tiles.map((tile) => tile.window);
  addChart('chart-scatter', 'Window and acceptance width of every head', () => ({
    traces: [{
      x: windows, y: tiles.map((tile) => tile.accept), mode: 'markers', type: 'scatter',
      text: tiles.map((tile) => 'layer ' + tile.layer + ', head ' + tile.head),
      marker: {size: tiles.length > 400 ? 6 : 10, color: tiles.map((tile) => layerColour(tile.layer, layers)),
               line: {color: theme.colour('card'), width: 1}},
      hovertemplate: '%{text}<br>w = %{x:,.1f} tokens<br>r = %{y:.3f}<extra></extra>',
    }],
    layout: {
      xaxis: {...logAxis(length ? [...windows, length] : windows), title: {text: 'screening window w, tokens'}},
      yaxis: {range: [0, 1.02], title: {text: 'acceptance width r'}}, ...trainingLength(length, 'x'),
    },
  }));
}
