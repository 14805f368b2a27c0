// The summary of a shootout: a table with a row per mixer, sortable by every column.
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

/** The 95% interval of a score, `1.2–5.4%`; empty if there is none. */
const formatInterval = (spread) => (spread?.interval_95?.every(isNumber)
  ? spread.interval_95.map((end) => (100 * end).toFixed(1)).join('–') + '%' : '');
const formatNats = (loss) => loss.toFixed(3);
const formatScore = (score) => formatPercent(score, 1);
const formatLength = (length) => length.toLocaleString('en');

/** `1,024, 4×`: a length and its multiple of the training length. */
function formatMultiple(length, trained, separator) {
  return formatLength(length) + (trained ? separator + formatNumber(length / trained) + '×' : '');
}

/** The names that `pick(mixer)` has for any mixer, in the order of their first appearance. */
const namesOf = (mixers, pick) => [...new Set(mixers.flatMap((mixer) => Object.keys(pick(mixer) || {})))];
/** The distinct numbers that `pick(mixer)` lists for any mixer, ascending. */
const valuesOf = (mixers, pick) =>
  [...new Set(mixers.flatMap((mixer) => pick(mixer) || []).filter(isNumber))].sort((a, b) => a - b);

const taskEntries = (mixer, task) => mixer.summary?.tasks?.[task] || [];
const taskLengths = (mixers, task) => valuesOf(mixers, (mixer) => taskEntries(mixer, task).map(({length}) => length));
const atLength = (list, length) => (list || []).find((entry) => entry.length === length);

/** The length closest to the training length on a log scale; the shortest if the training length is unknown. */
function nearestLength(lengths, trained) {
  const distance = (length) => Math.abs(Math.log(length / (trained || lengths[0])));
  return lengths.reduce((best, length) => (distance(length) < distance(best) ? length : best));
}

const megaflop = (entry) => (isNumber(entry?.flops) ? entry.flops / 1e6 : null);

/** The numbers of diverged and missing runs of a mixer; empty if all are done. */
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

/** Columns: titles of the group and the column, whether the least or the most is best, the value as a spread, its format. */
function summaryColumns({mixers, train = {}, task_lengths: trained = {}}) {
  const plain = (pick) => (mixer) => ({mean: pick(mixer)});
  const columns = [
    {title: 'learning rate', value: plain((mixer) => mixer.chosen_lr), format: String,
     under: (mixer) => mixer.lr_edge && `${mixer.lr_edge} of the grid`},
    {title: 'parameters', note: 'without embedding', value: plain((mixer) => mixer.parameters_without_embedding),
     format: formatCount},
  ];
  for (const source of namesOf(mixers, (mixer) => mixer.summary?.validation))
    columns.push({group: 'validation loss', title: source, best: 'min', format: formatNats,
                  value: (mixer) => mixer.summary?.validation?.[source]});
  for (const task of namesOf(mixers, (mixer) => mixer.summary?.tasks)) {
    const lengths = taskLengths(mixers, task);
    if (!lengths.length) continue;
    for (const length of new Set([nearestLength(lengths, trained[task]), lengths[lengths.length - 1]]))
      columns.push({group: task, title: formatMultiple(length, trained[task], ', '), best: 'max', format: formatScore,
                    under: (mixer) => formatInterval(atLength(taskEntries(mixer, task), length)),
                    value: (mixer) => atLength(taskEntries(mixer, task), length)});
  }
  columns.push({title: 'tokens/s', note: 'in training', best: 'max', format: formatCount,
                value: (mixer) => mixer.summary?.tokens_per_second});
  const states = valuesOf(mixers, (mixer) => mixer.state_bytes?.map(({length}) => length));
  if (states.length) {
    const [shortest, longest] = [states[0], states[states.length - 1]];
    if (longest > shortest) columns.push({group: 'state', title: 'a token', best: 'min', exact: true, format: formatSize,
      value: plain((mixer) => mixer.state_bytes_per_token)});
    columns.push({group: 'state', title: 'at ' + formatLength(longest), best: 'min', exact: true, format: formatSize,
                  value: plain((mixer) => atLength(mixer.state_bytes, longest)?.bytes)});
  }
  const works = valuesOf(mixers, (mixer) => mixer.flops_per_token?.map(({length}) => length));
  if (works.length) {
    const length = nearestLength(works, train.length);
    columns.push({title: 'MFLOP per token', note: 'at ' + formatLength(length), best: 'min', exact: true, format: formatNumber,
                  value: plain((mixer) => megaflop(atLength(mixer.flops_per_token, length)))});
  }
  return columns.filter(({value}) => mixers.some((mixer) => isNumber(value(mixer)?.mean)));
}

/** Two header rows: the columns of a group share a cell in the first. `heads` receives the cell of each column. */
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

/**
 * Which cells of a column are bold: the best one and those whose 95% interval overlaps with its interval, unless that
 * holds for all cells. Cells without an interval are never bold, except exact numbers.
 */
function bestCells(cells, {best, exact, format}) {
  const none = cells.map(() => false);
  const known = cells.filter((cell) => isNumber(cell?.mean));
  if (!best || known.length < 2) return none;
  const ends = (cell) => (exact ? [cell.mean, cell.mean] : cell.interval_95);
  if (!known.every((cell) => ends(cell)?.every(isNumber))) return none;
  const leader = known.reduce((top, cell) => ((best === 'max' ? cell.mean > top.mean : cell.mean < top.mean) ? cell : top));
  const meets = (cell) => (exact ? format(cell.mean) === format(leader.mean)
                                 : ends(cell)[0] <= ends(leader)[1] && ends(leader)[0] <= ends(cell)[1]);
  if (known.every(meets)) return none;
  return cells.map((cell) => isNumber(cell?.mean) && meets(cell));
}

function summaryTable(data) {
  const {mixers} = data;
  const columns = [{title: 'mixer', name: true}, ...summaryColumns(data)];
  const cells = columns.map((column) => (column.name ? [] : mixers.map((mixer) => column.value(mixer))));
  const bests = columns.map((column, at) => bestCells(cells[at], column));
  const rows = mixers.map((mixer, row) => element('tr', {}, ...columns.map(({name, format, group, title, under}, at) => {
    if (name) {
      const note = mishap(mixer);
      return element('th', {scope: 'row'}, mixer.name, note ? element('span', {class: 'mishap'}, note) : null);
    }
    const cell = cells[at][row];
    const small = under?.(mixer);
    return element('td', {...(bests[at][row] ? {class: 'best'} : {}), 'data-label': group ? `${group}, ${title}` : title},
      formatSpread(cell, format), small ? element('small', {class: 'under'}, small) : null);
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
      // Missing values come last in both directions.
      return isNumber(left) && isNumber(right) ? sign * (left - right) : isNumber(right) - isNumber(left);
    });
    body.append(...order.map((row) => rows[row]));
  };
  const summary = element('table', {class: 'summary'}, summaryHead(columns, heads, sort), body);
  return element('div', {}, sortChoice(columns, sort), summary);
}

/** The choice of the sorting column for phones, where each mixer is a card without column headers. */
function sortChoice(columns, sort) {
  const select = element('select', {}, ...columns.map(({group, title}, at) =>
    element('option', {value: at}, group ? `${group}, ${title}` : title)));
  select.addEventListener('change', () => sort(Number(select.value)));
  return element('label', {class: 'sort-choice'}, 'Sort by ', select);
}
