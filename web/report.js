// Puts the page together from the data; every part may be missing.
'use strict';

const last = (series) => (series && series.y.length ? series.y[series.y.length - 1] : undefined);

function drawIntro(data) {
  const {model, training, abc_digits: abc} = data;
  document.title = data.title + ' · Tamis';
  byId('title').textContent = data.title;
  byId('subtitle').textContent = [model.type, `${model.layers} layers`, model.heads && `${model.heads} heads`,
    `width ${model.hidden_size}`, model.training_length && `trained on ${model.training_length.toLocaleString('en')} tokens`,
  ].filter(Boolean).join(' · ');
  const facts = [['Parameters', formatCount(model.parameters)],
                 ['without embedding', formatCount(model.parameters_without_embedding)]];
  if (abc) {
    const sum = abc.cells.reduce((total, cell) => total + cell.exact_match, 0);
    facts.push(['ABCDigits, mean', formatPercent(sum / abc.cells.length, 1)]);
  }
  if (training) {
    const loss = last(training.loss);
    for (const [source, series] of Object.entries(training.validation || {}))
      facts.push([`Validation loss, ${source}`, formatNumber(last(series), 4)]);
    if (!training.validation && loss !== undefined) facts.push(['Last loss', formatNumber(loss, 4)]);
    if (isNumber(training.steps)) facts.push(['Steps', formatNumber(training.steps)]);
    if (isNumber(training.tokens)) facts.push(['Tokens', formatCount(training.tokens)]);
    if (isNumber(training.seconds)) facts.push(['Time', formatDuration(training.seconds)]);
    if (isNumber(training.mfu)) facts.push(['of peak FLOP/s', formatPercent(training.mfu)]);
    if (isNumber(training.memory_bytes)) facts.push(['Memory', formatBytes(training.memory_bytes)]);
  }
  byId('facts').append(...facts.map(([name, value]) =>
    element('div', {}, element('dt', {}, name), element('dd', {}, value))));
}

function drawTraining(data) {
  show('training');
  drawCurves(data.training);
  const history = data.training.tiles;
  if (history) drawTileHistory(history, data.model.layers, data.model.training_length);
  for (const id of ['chart-windows', 'chart-accepts']) if (!history) byId(id).closest('figure').remove();
}

function drawAbcDigits(data) {
  show('retrieval');
  byId('retrieval-note').textContent =
    'Each of 26 letters is bound to a number of six digits; the end asks for one.';
  const others = data.beside || [];
  const note = (abc) => `${abc.instances} instances a cell, windows ${
    abc.expand_windows ? 'expanded beyond the training length' : 'as trained'}`;
  if (data.abc_digits) drawRetrieval(data.abc_digits, others.length ? data.title + ': ' : '', note(data.abc_digits), 0);
  others.forEach((run, at) => drawRetrieval(run.abc_digits, `${run.title}, ${run.type}, ` +
    `${formatCount(run.parameters)} parameters: `, note(run.abc_digits), at + 1));
}

function drawTiles(data) {
  const tiles = (data.tiles || []).filter((tile) => isNumber(tile.window) && isNumber(tile.accept));
  if (!tiles.length) return;
  show('tiles');
  drawScatter(tiles, data.model.layers, data.model.training_length);
  byId('table-tiles').append(table(['Tile', 'Layer', 'Head', 'w, tokens', 'r'], data.tiles.map((tile) =>
    [`${tile.layer}.${tile.head}`, String(tile.layer), String(tile.head), formatWindow(tile.window),
     isNumber(tile.accept) ? tile.accept.toFixed(3) : '–'])));
}

function drawSamples(samples) {
  show('samples');
  const slider = byId('sample-step');
  slider.max = samples.length - 1;
  slider.value = samples.length - 1;
  const choose = () => {
    const sample = samples[Number(slider.value)];
    byId('sample-label').textContent = sample.step.toLocaleString('en');
    slider.setAttribute('aria-valuetext', 'step ' + sample.step);
    byId('sample-text').replaceChildren(element('span', {class: 'prompt'}, sample.prompt || ''), sample.text);
  };
  slider.addEventListener('input', choose);
  // As high as the longest sample, so that the page below stays where it is.
  const lines = ({prompt = '', text}) => (prompt + text).split('\n').reduce((sum, line) => sum + 1 + line.length / 100, 0);
  byId('sample-text').style.height = 1.6 * Math.min(14, Math.ceil(Math.max(...samples.map(lines)))) + 'em';
  slider.closest('.sample-head').classList.toggle('single', samples.length === 1);
  choose();
}

function drawProvenance(data) {
  show('provenance');
  if (data.recipe) byId('recipe').textContent = data.recipe;
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
  show('relevance');
  byId('relevance-note').textContent = relevance.note || '';
  drawRelevance(relevance);
}

startPage((data) => {
  drawParts([
    () => drawIntro(data),
    () => data.training && drawTraining(data),
    () => (data.abc_digits || data.beside) && drawAbcDigits(data),
    () => data.relevance && drawMaps(data.relevance),
    () => drawTiles(data),
    () => data.samples && drawSamples(data.samples),
    () => drawProvenance(data),
  ]);
  const drawLegend = () => drawLayersLegend(data.model.layers);
  drawLegend();
  theme.listeners.push(drawLegend);
});
