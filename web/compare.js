// The comparison of several runs: models, final results, and settings that differ.
'use strict';

/** A table with a row per setting that differs: its name, then its value in each run. */
function differingSettings(runs) {
  const maps = runs.map(({settings: own}) => new Map(flattened(own || {})));
  const names = [...new Set(maps.flatMap((map) => [...map.keys()]))].filter((name) => name !== 'run.dir');
  return names.map((name) => [name, ...maps.map((map) => map.get(name) ?? '–')])
    .filter(([, ...values]) => new Set(values).size > 1);
}

function drawComparison(runs) {
  show('comparison');
  const sources = [...new Set(runs.flatMap(({training}) => Object.keys(training?.validation || {})))];
  const text = (value, format) => (isNumber(value) ? format(value) : '–');
  const columns = [
    ['Model', ({model}) => model.type],
    ['Parameters', ({model}) => text(model.parameters, formatCount)],
    ['without embedding', ({model}) => text(model.parameters_without_embedding, formatCount)],
    ['Steps', ({training}) => text(training?.steps, formatNumber)],
    ['Tokens', ({training}) => text(training?.tokens, formatCount)],
    ['Time', ({training}) => text(training?.seconds, formatDuration)],
    ['Training loss', ({training}) => text(last(training?.loss), formatLoss)],
    ...sources.map((source) => [`Validation, ${source}`, ({training}) => text(last(training?.validation?.[source]), formatLoss)]),
  ].filter(([, value]) => runs.some((run) => value(run) !== '–'));
  byId('table-runs').append(table(['Run', ...columns.map(([name]) => name)],
    runs.map((run) => [run.title, ...columns.map(([, value]) => value(run))])));
  byId('table-runs').querySelectorAll('tbody th').forEach((cell, index) => cell.prepend(runSwatch(index)));
  const differing = differingSettings(runs);
  if (differing.length) byId('table-differences').append(table(['Setting', ...runs.map(({title}) => title)], differing));
  else byId('differences').remove();
  const legend = byId('runs-legend');
  legend.hidden = false;
  legend.append(...runs.map(({title}, index) => element('span', {class: 'key'}, runSwatch(index), title)));
}

/** A square in the run's colour of the current theme. */
function runSwatch(index) {
  const swatch = element('i', {class: 'swatch'});
  swatch.style.background = `var(--series-${index % 10})`;
  return swatch;
}
