// Builds the page of a run or a model from its data; all parts are optional.
'use strict';

const last = (series) => (series && series.y.length ? series.y[series.y.length - 1] : undefined);

function drawIntro(data, runs) {
  const {model, training, evals} = data;
  const title = runs.length === 1 ? data.title : runs.length < 4 ? runs.map((run) => run.title).join(', ')
    : `${data.title} and ${runs.length - 1} other runs`;
  document.title = title + ' · Tamis';
  byId('title').textContent = title;
  if (runs.length > 1) {
    byId('subtitle').textContent = `${runs.length} runs compared; maps, heads and provenance are those of ${data.title}`;
    return;
  }
  byId('subtitle').textContent = [model.type, `${model.layers} layers`, model.heads && `${model.heads} heads`,
    `width ${model.hidden_size}`, model.training_length && `trained on ${model.training_length.toLocaleString('en')} tokens`,
  ].filter(Boolean).join(' · ');
  const facts = [['Parameters', formatCount(model.parameters)],
                 ['without embedding', formatCount(model.parameters_without_embedding)]];
  const abc = evals?.abc_digits;
  if (isTask(abc)) {
    const sum = abc.cells.reduce((total, cell) => total + cell.exact_match, 0);
    facts.push(['ABCDigits, mean', formatPercent(sum / abc.cells.length, 1)]);
  }
  if (training) {
    const loss = last(training.loss);
    for (const [source, series] of Object.entries(training.validation || {}))
      facts.push([`Validation loss, ${source}`, formatLoss(last(series))]);
    if (!training.validation && loss !== undefined) facts.push(['Last loss', formatLoss(loss)]);
    if (isNumber(training.steps)) facts.push(['Steps', formatNumber(training.steps)]);
    if (isNumber(training.tokens)) facts.push(['Tokens', formatCount(training.tokens)]);
    if (isNumber(training.seconds)) facts.push(['Time', formatDuration(training.seconds)]);
    if (isNumber(training.mfu)) facts.push(['of peak FLOP/s', formatPercent(training.mfu)]);
    if (isNumber(training.memory_bytes)) facts.push(['Memory', formatBytes(training.memory_bytes)]);
  }
  drawFacts(facts);
}

function drawTraining(data, runs) {
  show('training');
  drawCurves(runs);
  const history = data.training?.tiles;
  if (history) drawTileHistory(history, data.model.layers, data.model.training_length);
  for (const id of ['chart-windows', 'chart-accepts']) if (!history) byId(id).closest('figure').remove();
}

function drawTiles(data) {
  const tiles = (data.tiles || []).filter((tile) => isNumber(tile.window) && isNumber(tile.accept));
  if (!tiles.length) return;
  show('tiles');
  drawScatter(tiles, data.model.layers, data.model.training_length);
  byId('table-tiles').append(table(['Layer.head', 'Layer', 'Head', 'w, tokens', 'r'], data.tiles.map((tile) =>
    [`${tile.layer}.${tile.head}`, String(tile.layer), String(tile.head), formatWindow(tile.window),
     isNumber(tile.accept) ? tile.accept.toFixed(3) : '–'])));
}

/** The samples of one run by training step; `name` is empty if there is only one run. */
function sampleCard(samples, name, number) {
  const id = 'sample-step-' + number, label = element('output', {}), text = element('pre', {class: 'text', tabindex: 0,
    'aria-label': 'Sample ' + name});
  const slider = element('input', {id, type: 'range', min: 0, max: samples.length - 1, value: samples.length - 1, step: 1});
  const choose = () => {
    const sample = samples[Number(slider.value)];
    label.textContent = sample.step.toLocaleString('en');
    slider.setAttribute('aria-valuetext', 'step ' + sample.step);
    text.replaceChildren(element('span', {class: 'prompt'}, visibleText(sample.prompt || '')), visibleText(sample.text));
  };
  slider.addEventListener('input', choose);
  // As high as the longest sample, so that the content below does not move.
  const lines = ({prompt = '', text: said}) =>
    visibleText(prompt + said).split('\n').reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / 100)), 0);
  text.style.height = 1.6 * Math.min(14, Math.max(...samples.map(lines))) + 'em';
  const single = samples.length === 1 ? ' single' : '';
  const card = element('figure', {class: 'card samples'}, name ? element('figcaption', {}, name) : null,
    element('div', {class: 'sample-head' + single}, element('label', {for: id}, 'Training step ', label), slider), text);
  choose();
  return card;
}

function drawSamples(runs) {
  show('samples');
  runs.forEach(({title, samples}, index) => samples?.length &&
    byId('sample-cards').append(sampleCard(samples, runs.length > 1 ? title : '', index)));
}

function drawProvenance(data) {
  show('provenance');
  if (data.recipe) byId('recipe').textContent = visibleText(data.recipe);
  else byId('recipe-card').remove();
  if (data.run) byId('machine').append(settings(data.run));
  else byId('machine-card').remove();
  byId('model').append(settings(data.model.config));
}

function drawLayersLegend(layers) {
  for (const legend of document.querySelectorAll('.layers-legend')) {
    const ramp = element('i', {class: 'ramp'});
    const stops = Array.from({length: layers}, (_, layer) =>
      `${layerColour(layer, layers)} ${100 * layer / layers}% ${100 * (layer + 1) / layers}%`);
    ramp.style.background = `linear-gradient(to right, ${stops.join(', ')})`;
    legend.replaceChildren('layer 0', ramp, String(layers - 1));
  }
}

function drawMaps(relevance) {
  if (relevance.maps.some(({mechanism}) => mechanism !== 'screening'))
    byId('relevance').querySelector('h2').textContent = 'Attention maps';
  show('relevance');
  byId('relevance-note').textContent = relevance.note || '';
  drawRelevance(relevance);
}

startPage((data) => {
  const runs = [data, ...(data.others || [])];
  drawParts([
    () => drawIntro(data, runs),
    () => runs.length > 1 && drawComparison(runs),
    () => runs.some(({training}) => training) && drawTraining(data, runs),
    () => drawEvaluations(runs),
    () => data.relevance && drawMaps(data.relevance),
    () => drawTiles(data),
    () => runs.some(({samples}) => samples?.length) && drawSamples(runs),
    () => drawProvenance(data),
  ]);
  const drawLegend = () => drawLayersLegend(data.model.layers);
  drawLegend();
  theme.listeners.push(drawLegend);
});
