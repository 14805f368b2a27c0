// Builds the page of a shootout from its data; all parts are optional.
'use strict';

/** `147k`, or `145k to 149k` if the mixers differ. */
function formatRange(values, format) {
  const known = values.filter(isNumber), [low, high] = [format(Math.min(...known)), format(Math.max(...known))];
  return low === high ? low : `${low} to ${high}`;
}

function drawIntro(data) {
  const {mixers, train = {}, lr_grid: grid = [], seeds = [], done, jobs} = data;
  document.title = data.title + ' · Tamis';
  byId('title').textContent = data.title;
  const sizes = mixers.map((mixer) => mixer.parameters_without_embedding).filter(isNumber);
  byId('subtitle').textContent = [
    mixers.length === 1 ? 'One mixer' : `${mixers.length} mixers side by side`,
    isNumber(train.tokens) && `trained on ${formatCount(train.tokens)} tokens each`,
    sizes.length && `${formatRange(sizes, formatCount)} parameters without the embedding`,
    grid.length > 1 && `each with the best of ${grid.length} learning rates, ${formatRange(grid, String)}`,
  ].filter(Boolean).join(' · ');
  if (done < jobs) {
    byId('progress').hidden = false;
    byId('progress').append(element('progress', {max: jobs, value: done, 'aria-label': 'Trainings done'}),
      `${done} of ${jobs} trainings done; missing results are omitted`);
  }
  const facts = [['Training length', train.length && formatLength(train.length)],
                 ['Steps', train.steps && formatLength(train.steps)],
                 ['Tokens per step', train.batch_tokens && formatLength(train.batch_tokens)],
                 [seeds.length > 1 ? 'Seeds' : 'Seed', seeds.join(', ')]];
  drawFacts(facts.filter(([, value]) => value));
}

function drawSummary(data) {
  show('summary');
  byId('table-summary').append(summaryTable(data));
  const {mixers} = data;
  const entries = mixers.flatMap((mixer) => Object.values(mixer.summary?.tasks || {}).flat());
  byId('summary-note').textContent = [
    entries.length && 'Tasks: score by length' +
      (data.task_lengths ? ' and its multiple of the length that the task was trained at.' : '.'),
    mixers.some((mixer) => mixer.state_bytes?.length) && 'State: the memory that decoding keeps for the text read so far.',
    entries.some(({n}) => n > 1)
      ? 'Mean ± standard deviation over seeds; 95% intervals of the mean below scores.'
      : entries.length && 'One seed: the 95% intervals below scores cover only the choice of instances; another seed may ' +
        'differ by more. Losses and speeds have no interval, so nothing is bold there.',
  ].filter(Boolean).join(' ');
  const edges = mixers.filter((mixer) => mixer.lr_edge);
  if (!edges.length) return;
  byId('edge-note').hidden = false;
  byId('edge-note').textContent = 'At the edge of the grid of learning rates, where a rate beyond it may be better: ' +
    edges.map((mixer) => `${mixer.name} (${mixer.lr_edge}, ${mixer.chosen_lr})`).join(', ') + '.';
}

/** The configurations of all mixers: first the keys that differ, then those they have in common. */
function configTable(mixers) {
  const text = (value) => (value === undefined ? '–' : typeof value === 'string' ? value : JSON.stringify(value));
  const rows = namesOf(mixers, ({config}) => config).map((key) =>
    [key, ...mixers.map(({config}) => text(config?.[key]))]);
  const differs = ([, ...values]) => new Set(values).size > 1;
  return table(['Setting', ...mixers.map(({name}) => name)],
               [...rows.filter(differs), ...rows.filter((row) => !differs(row))]);
}

function drawProvenance({mixers, recipe, machine}) {
  const configured = mixers.some(({config}) => config && Object.keys(config).length);
  if (!recipe && !machine && !configured) return;
  show('provenance');
  if (recipe) byId('recipe').textContent = recipe;
  else byId('recipe-card').remove();
  if (configured) byId('table-models').append(configTable(mixers));
  else byId('models-card').remove();
  if (machine) byId('machine').append(settings(machine));
  else byId('machine-card').remove();
}

startPage((data) => {
  const trained = data.train?.length, mixers = (data.mixers || []).map((mixer, index) => ({...mixer, index}));
  drawParts([
    () => drawIntro({...data, mixers}),
    () => mixers.length && drawSummary({...data, mixers}),
    () => drawScores(mixers, data.task_lengths || {}, data.chance?.score || {}),
    () => drawTrainingCurves(mixers),
    () => drawPositions(mixers, data.chance?.loss || {}),
    () => drawRates(mixers),
    () => drawCosts(mixers, trained),
    () => charts.length && drawLegend(mixers),
    () => drawProvenance({...data, mixers}),
  ]);
});
