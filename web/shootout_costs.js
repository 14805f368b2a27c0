// The costs of the mixers of a shootout: speed, state memory, FLOPs.
'use strict';

/** A log axis of bytes with a tick at every power of two, or of four, ... */
function sizeAxis(sizes) {
  const exponents = sizes.map(Math.log2);
  const low = Math.floor(Math.min(...exponents)), high = Math.ceil(Math.max(...exponents)) + 1;
  const step = Math.ceil((high - low) / (window.innerWidth > 600 ? 8 : 4));
  const powers = Array.from({length: Math.floor((high - low) / step) + 1}, (_, at) => 2 ** (low + at * step));
  const within = powers.filter((tick) => tick >= Math.min(...sizes) && tick <= Math.max(...sizes));
  const ticks = within.length > 1 ? powers : [...new Set(sizes)].slice(0, 3);  // similar sizes: no powers between them
  return {type: 'log', tickmode: 'array', tickvals: ticks, ticktext: ticks.map(formatSize)};
}

const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const boxAround = (x, y, width, height) =>
  ({left: x - width / 2, right: x + width / 2, top: y - height / 2, bottom: y + height / 2});

/**
 * Places labels beside their points ({x, y, text}, in pixels) in a frame of width x height. Returns for each label the
 * offset of its middle from its point, as close as possible without covering a point or another label, or null if there
 * is no space.
 */
function placeLabels(points, width, height) {
  const markers = points.map(({x, y}) => boxAround(x, y, 12, 12)), labels = [];
  // Labels are stacked in the order of their points, so that the lines to them do not cross.
  const disordered = (box, label) => box.left < label.right && label.left < box.right && box.top < label.bottom;
  const place = ({x, y, text}) => {
    const wide = 6.4 * text.length + 4, side = wide / 2 + 9;
    const offsets = [[side, 0], [-side, 0], [0, -16], [0, 16]];
    for (let away = 17; away < 80; away += 17)
      for (const dy of [away, -away]) offsets.push([side + 6, dy], [-side - 6, dy]);
    const free = offsets.find(([dx, dy]) => {
      const box = boxAround(x + dx, y + dy, wide, 15);
      return box.left >= 0 && box.right <= width && box.top >= 0 && box.bottom <= height &&
             !markers.some((marker) => overlap(box, marker)) && !labels.some((label) => disordered(box, label));
    });
    if (!free) return null;
    labels.push(boxAround(x + free[0], y + free[1], wide, 15));
    return free;
  };
  const offsets = new Map([...points].sort((a, b) => a.y - b.y).map((point) => [point, place(point)]));
  return points.map((point) => offsets.get(point));
}

/** The range of an axis around the values, with margins at both ends. */
function roomyRange(values) {
  const low = Math.min(...values), high = Math.max(...values), room = 0.12 * (high - low) || 0.1 * Math.abs(high) || 1;
  return [low - room, high + room];
}

/** Speed against state memory; every point is labelled with its mixer. */
function drawSpeed(mixers) {
  const lengths = valuesOf(mixers, (mixer) => mixer.state_bytes?.map(({length}) => length));
  const longest = lengths[lengths.length - 1];
  const state = (mixer) => atLength(mixer.state_bytes, longest)?.bytes;
  const speed = (mixer) => mixer.summary?.tokens_per_second;
  const known = mixers.filter((mixer) => state(mixer) > 0 && isNumber(speed(mixer)?.mean));
  if (!known.length) return false;
  byId('speed-note').textContent = `training speed in tokens per second, by state at ${formatLength(longest)} tokens`;
  const margin = {l: 52, r: 12, t: 8, b: 48};
  const xRange = roomyRange(known.map((mixer) => Math.log10(state(mixer))));
  const yRange = roomyRange(known.map((mixer) => speed(mixer).mean));
  addChart('chart-speed', 'Training speed and size of the state of every mixer; the summary has the numbers', () => {
    const shown = visible(known), node = byId('chart-speed');
    const width = node.clientWidth - margin.l - margin.r, height = node.clientHeight - margin.t - margin.b;
    const offsets = placeLabels(shown.map((mixer) => ({
      x: width * (Math.log10(state(mixer)) - xRange[0]) / (xRange[1] - xRange[0]),
      y: height * (yRange[1] - speed(mixer).mean) / (yRange[1] - yRange[0]), text: mixer.name})), width, height);
    return {
      traces: shown.map((mixer) => mixerTrace(mixer, [{x: state(mixer), y: speed(mixer).mean,
        text: `${formatSpread(speed(mixer), formatCount)} tokens/s<br>state of ${formatSize(state(mixer))}`}],
        {mode: 'markers', marker: {size: 11}})),
      layout: {
        margin, xaxis: {...sizeAxis(known.map(state)), range: xRange, title: {text: 'state'}, automargin: false},
        yaxis: {range: yRange, tickformat: '~s', automargin: false},
        // A point is connected to its label by a line only if the label is not beside it; else the line would cross it.
        annotations: shown.flatMap((mixer, at) => (offsets[at] === null ? [] : [{
          x: Math.log10(state(mixer)), y: speed(mixer).mean, text: plotlyText(mixer.name), font: {size: 11},
          ...(Math.abs(offsets[at][1]) < 17
            ? {showarrow: false, xshift: offsets[at][0], yshift: -offsets[at][1]}
            : {ax: offsets[at][0], ay: offsets[at][1], showarrow: true, arrowhead: 0, arrowwidth: 1, standoff: 7,
               arrowcolor: theme.colour('outside'), borderpad: 0})}])),
      },
    };
  });
  return true;
}

function drawWork(mixers, trained) {
  const lengths = valuesOf(mixers, (mixer) => mixer.flops_per_token?.map(({length}) => length));
  const work = (mixer, length) => megaflop(atLength(mixer.flops_per_token, length));
  const values = mixers.flatMap((mixer) => lengths.map((length) => work(mixer, length))).filter((value) => value > 0);
  if (!values.length) return false;
  narrowWhenFew('chart-work', lengths.length);
  addChart('chart-work', 'FLOPs per token of every mixer by length; the table below has the numbers', () => ({
    traces: visible(mixers).map((mixer) => mixerTrace(mixer, lengths.map((length) => ({
      x: length, y: work(mixer, length),
      text: `${formatMultiple(length, trained, ' tokens, ')}<br>${formatNumber(work(mixer, length))} MFLOP per token`,
    })))),
    layout: {xaxis: lengthAxis(lengths, trained), yaxis: spans(values, 10) ? logAxis(values) : {rangemode: 'tozero'},
             ...trainingLength(trained, 'x')},
  }));
  byId('table-work').append(table(['Mixer', ...lengths.map(formatLength)],
    mixers.map((mixer) => [mixer.name, ...lengths.map((length) => formatNumber(work(mixer, length)))])));
  return true;
}

function drawCosts(mixers, trained) {
  if (mixers.every(({flops_per_token: flops, state_bytes: bytes}) => !flops?.length && !bytes?.length)) return;
  byId('costs').hidden = false;  // before drawing: a chart gets the size of its visible element
  const drawnCharts = [['chart-speed', drawSpeed(mixers)], ['chart-work', drawWork(mixers, trained)]];
  for (const [id, isDrawn] of drawnCharts) if (!isDrawn) byId(id).closest('figure').remove();
  if (drawnCharts.some(([, isDrawn]) => isDrawn)) show('costs');
  else byId('costs').hidden = true;
}
