// The summary of a shootout: one row a mixer, sortable by every column.
'use strict';

/** Bytes of a state, with three digits: `512 B`, `1.5 KiB`. */
function formatSize(bytes) {
  const unit = Math.min(Math.max(Math.floor(Math.log2(bytes || 1) / 10), 0), 3);
  return Number((bytes / 1024 ** unit).toPrecision(3)).toLocaleString('en') + ' ' + ['B', 'KiB', 'MiB', 'GiB'][unit];
}

/** A mean of one or more runs: `90.0%`, `90.0% ± 1.2%`. */
function formatSpread(spread, format) {
  if (!spread || !isNumber(spread.mean)) return '–';
  return format(spread.mean) + (isNumber(spread.sd) ? ' ± ' + format(spread.sd) : '');
}

const formatLoss = (loss) => loss.toFixed(3);
const formatScore = (score) => formatPercent(score, 1);
const formatLength = (length) => length.toLocaleString('en');

/** `1,024, 4×`: a length and its multiple of the training length. */
function formatMultiple(length, trained, separator) {
  return formatLength(length) + (trained ? separator + formatNumber(length / trained) + '×' : '');
}

/** The names that `pick(mixer)` has for any mixer, in the order of their first appearance. */
const namesOf = (mixers, pick) => [...new Set(mixers.flatMap((mixer) => Object.keys(pick(mixer) || {})))];
/** The numbers that `pick(mixer)` lists for any mixer, rising and once each. */
const valuesOf = (mixers, pick) =>
  [...new Set(mixers.flatMap((mixer) => pick(mixer) || []).filter(isNumber))].sort((a, b) => a - b);

const taskEntries = (mixer, task) => mixer.summary?.tasks?.[task] || [];
const taskLengths = (mixers, task) => valuesOf(mixers, (mixer) => taskEntries(mixer, task).map(({length}) => length));
const atLength = (list, length) => (list || []).find((entry) => entry.length === length);

/** Of rising lengths the nearest to the training length, counted in doublings; without one the shortest. */
function nearestLength(lengths, trained) {
  const distance = (length) => Math.abs(Math.log(length / (trained || lengths[0])));
  return lengths.reduce((best, length) => (distance(length) < distance(best) ? length : best));
}

const megaflop = (entry) => (isNumber(entry?.flops) ? entry.flops / 1e6 : null);

/** What became of a mixer's runs, when not all of them are done; else an empty text. */
function mishap({runs = [], search = []}) {
  const diverged = runs.filter(({status}) => status === 'diverged').length;
  if (diverged) return diverged === runs.length ? 'diverged' : `${diverged} of ${runs.length} runs diverged`;
  if (search.length && search.every(({status}) => status === 'diverged')) return 'diverged at every learning rate';
  const done = runs.filter(({status}) => status === 'done').length;
  if (done && done === runs.length) return '';
  if (done) return `${done} of ${runs.length} runs done`;
  const tried = search.filter(({status}) => status !== 'missing').length;
  return tried ? `${tried} of ${search.length} learning rates tried` : 'not run yet';
}

/** Columns: the group's and their own title, what is best (least or most), the value as a spread, its format. */
function summaryColumns({mixers, train = {}, task_lengths: trained = {}}) {
  const plain = (pick) => (mixer) => ({mean: pick(mixer)});
  const columns = [
    {title: 'learning rate', value: plain((mixer) => mixer.chosen_lr), format: String},
    {title: 'parameters', note: 'without embedding', value: plain((mixer) => mixer.parameters_without_embedding),
     format: formatCount},
  ];
  for (const source of namesOf(mixers, (mixer) => mixer.summary?.validation))
    columns.push({group: 'validation loss', title: source, best: 'min', format: formatLoss,
                  value: (mixer) => mixer.summary?.validation?.[source]});
  for (const task of namesOf(mixers, (mixer) => mixer.summary?.tasks)) {
    const lengths = taskLengths(mixers, task);
    if (!lengths.length) continue;
    for (const length of new Set([nearestLength(lengths, trained[task]), lengths[lengths.length - 1]]))
      columns.push({group: task, title: formatMultiple(length, trained[task], ', '), best: 'max', format: formatScore,
                    value: (mixer) => atLength(taskEntries(mixer, task), length)});
  }
  columns.push({title: 'tokens/s', note: 'in training', best: 'max', format: formatCount,
                value: (mixer) => mixer.summary?.tokens_per_second});
  const states = valuesOf(mixers, (mixer) => mixer.state_bytes?.map(({length}) => length));
  if (states.length) {
    const [shortest, longest] = [states[0], states[states.length - 1]];
    if (longest > shortest) columns.push({group: 'state', title: 'a token', best: 'min', format: formatSize,
      value: plain((mixer) => mixer.state_bytes_per_token)});
    columns.push({group: 'state', title: 'at ' + formatLength(longest), best: 'min', format: formatSize,
                  value: plain((mixer) => atLength(mixer.state_bytes, longest)?.bytes)});
  }
  const works = valuesOf(mixers, (mixer) => mixer.flops_per_token?.map(({length}) => length));
  if (works.length) {
    const length = nearestLength(works, train.length);
    columns.push({title: 'MFLOP a token', note: 'at ' + formatLength(length), best: 'min', format: formatNumber,
                  value: plain((mixer) => megaflop(atLength(mixer.flops_per_token, length)))});
  }
  return columns.filter(({value}) => mixers.some((mixer) => isNumber(value(mixer)?.mean)));
}

/** Two rows of heads: columns of one group share a cell above their own. `heads` gets each column's cell. */
function summaryHead(columns, heads, sort) {
  const upper = element('tr'), lower = element('tr');
  columns.forEach((column, at) => {
    const button = element('button', {class: 'sort', type: 'button'}, column.title);
    button.addEventListener('click', () => sort(at));
    const note = column.note ? element('small', {class: 'under'}, column.note) : null;
    const head = element('th', {scope: 'col'}, button, note);
    heads.push(head);
    if (column.group === undefined) {
      head.rowSpan = 2;
      upper.append(head);
      return;
    }
    const span = columns.filter(({group}) => group === column.group).length;
    if (columns[at - 1]?.group !== column.group)
      upper.append(element('th', {scope: 'colgroup', colspan: span}, column.group));
    lower.append(head);
  });
  return element('thead', {}, upper, lower);
}

function summaryTable(data) {
  const {mixers} = data;
  const columns = [{title: 'mixer', name: true}, ...summaryColumns(data)];
  const cells = columns.map((column) => (column.name ? [] : mixers.map((mixer) => column.value(mixer))));
  const bests = columns.map(({best, format}, at) => {
    const means = cells[at].map((cell) => cell?.mean).filter(isNumber);
    if (!best || new Set(means.map((mean) => format(mean))).size < 2) return null;  // none is better than another
    return format(best === 'max' ? Math.max(...means) : Math.min(...means));
  });
  const rows = mixers.map((mixer, row) => element('tr', {}, ...columns.map(({name, format}, at) => {
    if (name) {
      const note = mishap(mixer);
      return element('th', {scope: 'row'}, mixer.name, note ? element('span', {class: 'mishap'}, note) : null);
    }
    const cell = cells[at][row];
    const best = isNumber(cell?.mean) && format(cell.mean) === bests[at];
    return element('td', best ? {class: 'best'} : {}, formatSpread(cell, format));
  })));

  const heads = [], body = element('tbody', {}, ...rows);
  const sort = (at) => {
    const {name, best} = columns[at];
    const first = best === 'max' ? 'descending' : 'ascending';
    const direction = heads[at].getAttribute('aria-sort') !== first ? first
      : first === 'ascending' ? 'descending' : 'ascending';
    for (const head of heads) head.removeAttribute('aria-sort');
    heads[at].setAttribute('aria-sort', direction);
    const sign = direction === 'ascending' ? 1 : -1;
    const order = mixers.map((_, row) => row).sort((a, b) => {
      if (name) return sign * mixers[a].name.localeCompare(mixers[b].name);
      const [left, right] = [cells[at][a]?.mean, cells[at][b]?.mean];
      // What was not measured comes last in both directions.
      return isNumber(left) && isNumber(right) ? sign * (left - right) : isNumber(right) - isNumber(left);
    });
    body.append(...order.map((row) => rows[row]));
  };
  return element('table', {class: 'summary'}, summaryHead(columns, heads, sort), body);
}
