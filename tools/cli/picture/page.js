'use strict';
// Draws the document of the page. Everything is drawn again when the page's width changes.
const shown = JSON.parse(document.getElementById('document').textContent);
const main = document.querySelector('main');
const tip = document.getElementById('tip');

// The colours of ops are the same wherever they are shown.
const colours = {
  forward: '#3b78c9', backward: '#1f4f96', loss: '#6a5bc2', accumulate: '#8a7fd0',
  update: '#c9762b', grad_norm: '#e0a458', checksum: '#a8855f', commit: '#7a5c3a',
  upload_params: '#2a9d8f', keep_params: '#1e7268', upload_frozen: '#6cc3b8', read_frozen: '#b7a3d9',
  download_grads: '#b5455c', save_activations: '#cf7f92', load_activations: '#7fb069',
  save_boundary: '#d998a8', load_boundary: '#9cc58a', read_state: '#4c8d4f',
  write_state: '#8f3f71', stage_state: '#b07aa1', all_gather: '#5f7d95',
  reduce_scatter: '#8c5b52', all_reduce: '#9a8f3c', all_to_all: '#767c85', send: '#3f8fa8',
  receive: '#7fb8c9', stash: '#9aa3ad',
};
const others = ['#6f9bd1', '#d08c60', '#76a665', '#b6788f', '#8d83c4', '#a39a55'];
function colour(name) {
  if (!colours[name]) colours[name] = others[Object.keys(colours).length % others.length];
  return colours[name];
}

function element(name, attributes = {}, ...children) {
  const isChart = ['svg', 'rect', 'line', 'text', 'path', 'g'].includes(name);
  const made = isChart ? document.createElementNS('http://www.w3.org/2000/svg', name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function bytes(count) {
  const units = ['B', 'KB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  for (; count >= 1000 && unit < units.length - 1; ++unit) count /= 1000;
  return `${unit === 0 ? count : count.toPrecision(3)} ${units[unit]}`;
}
function seconds(count) {
  if (count < 5e-10) return '0 s';
  if (count >= 1) return `${count.toFixed(count >= 100 ? 0 : 2)} s`;
  return count >= 1e-3 ? `${(count * 1e3).toPrecision(3)} ms` : `${(count * 1e6).toPrecision(3)} µs`;
}
function plain(count) {
  if (count === null || count === undefined || !isFinite(count)) return '–';
  if (count !== 0 && (Math.abs(count) < 1e-3 || Math.abs(count) >= 1e6)) return count.toExponential(2);
  return Math.abs(count) >= 1000 ? Math.round(count).toLocaleString('en') : `${+count.toPrecision(4)}`;
}
const percent = share => `${(100 * share).toFixed(Math.abs(share) < 0.1 ? 1 : 0)} %`;

function explain(target, text) {
  target.append(element('title', {}, text));  // for readers without a pointer
  target.addEventListener('pointermove', event => {
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - 290)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  });
  target.addEventListener('pointerleave', () => { tip.hidden = true; });
}

function section(title, text) {
  main.append(element('h2', {}, title));
  if (text) main.append(element('p', {}, text));
}

function table(headings, rows) {
  const cell = (name, content) => {
    const {text, style} = typeof content === 'object' && content !== null ? content : {text: content};
    return element(name, style ? {class: style} : {}, text ?? '–');
  };
  const body = rows.map(row => element('tr', {}, ...row.map(each => cell('td', each))));
  main.append(element('div', {class: 'scroll'}, element('table', {},
    element('thead', {}, element('tr', {}, ...headings.map(each => cell('th', each)))),
    element('tbody', {}, ...body))));
}

function legend(entries) {
  main.append(element('div', {class: 'legend'}, ...entries.map(([name, paint]) =>
    element('span', {}, element('i', {style: `background:${paint}`}), name))));
}

function facts() {
  const {plan, picture, run, measured} = shown;
  const rows = [];
  if (plan) rows.push([`${plain(plan.parameters / 1e6)} M`, 'parameters']);
  if (run && run.step_seconds) rows.push([seconds(run.step_seconds), 'a step, measured (median)']);
  if (picture) rows.push([seconds(picture.step_seconds), 'a step, predicted']);
  if (plan) {
    const time = run && run.step_seconds ? run.step_seconds : plan.step_seconds;
    rows.push([plain(plan.tokens_per_step / time), 'tokens/s']);
    rows.push([plain(plan.tokens_per_step), 'tokens a step']);
  }
  if (run && picture && run.step_seconds) {
    rows.push([percent(picture.step_seconds / run.step_seconds), 'of the planned speed']);
  }
  const bounding = picture?.lanes.find(lane => lane.lane === picture.bounding_lane);
  if (bounding) rows.push([bounding.shown, 'bounds the step']);
  for (const tier of picture ? picture.memory : []) {
    rows.push([bytes(tier.taken),
      `${tier.tier}${tier.budget ? ` of ${bytes(tier.budget)} (${percent(tier.taken / tier.budget)})` : ''}`]);
  }
  if (run && run.last_step) rows.push([plain(run.last_loss), `loss of step ${run.last_step}`]);
  if (measured) rows.push([measured.steps, 'steps traced']);
  main.append(element('div', {class: 'facts'}, ...rows.map(([value, name]) =>
    element('div', {class: 'fact'}, element('b', {}, `${value}`), element('span', {}, name)))));
}

function timeline(lanes, length, caption) {
  const width = main.clientWidth - 32, left = Math.min(92, width * 0.22), row = 26;
  const height = lanes.length * row + 26;
  const svg = element('svg', {class: 'chart', viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': caption});
  const x = time => left + (width - left - 8) * time / length;
  lanes.forEach((lane, index) => {
    const top = index * row;
    svg.append(element('text', {class: 'name', x: 0, y: top + 17}, lane.shown ?? lane.lane));
    svg.append(element('line', {class: 'rule', x1: left, x2: width - 8, y1: top + row - 2,
      y2: top + row - 2}));
    for (const [name, start, end, ops] of lane.bars) {
      const bar = element('rect', {class: 'bar', x: x(start), y: top + 3,
        width: Math.max(x(end) - x(start), 0.6), height: row - 7, fill: colour(name)});
      explain(bar, `${name}${ops > 1 ? ` (${ops} ops)` : ''}: ${seconds(start)} to ${seconds(end)}`);
      svg.append(bar);
    }
  });
  for (let tick = 0; tick <= 4; ++tick) {
    svg.append(element('text', {x: x(length * tick / 4), y: height - 6,
      'text-anchor': tick === 0 ? 'start' : tick === 4 ? 'end' : 'middle'},
    seconds(length * tick / 4)));
  }
  main.append(element('p', {}, caption), svg);
}

function timelines() {
  const {picture, measured} = shown;
  if (!picture && !measured) return;
  section('A step', 'Each row is a lane, which works beside the others: compute, the link in both '
    + 'directions, the update on the CPU, the network and the disk.');
  const length = Math.max(picture ? picture.step_seconds : 0, measured ? measured.step_seconds : 0);
  const order = picture ? picture.lanes.map(lane => lane.lane) : [];
  const named = lane => ({shown: picture?.lanes.find(each => each.lane === lane.lane)?.shown, ...lane});
  if (picture) timeline(picture.lanes, length, `planned: ${seconds(picture.step_seconds)}`);
  if (measured) {
    const lanes = measured.lanes.map(named)
      .sort((a, b) => order.indexOf(a.lane) - order.indexOf(b.lane));
    timeline(lanes, length, `measured: ${seconds(measured.step_seconds)}, the median of `
      + `${measured.steps} steps`);
  }
  const names = new Set();
  for (const lanes of [picture?.lanes ?? [], measured?.lanes ?? []]) {
    for (const lane of lanes) for (const bar of lane.bars) names.add(bar[0]);
  }
  legend([...names].map(name => [name, colour(name)]));
}

function bounds() {
  const {picture, plan} = shown;
  if (!picture) return;
  section('What bounds it', 'A lane is exposed while it works and compute waits. With as many tokens '
    + 'a step as the last column says, its work is no longer than that of compute.');
  table(['lane', 'busy', 'share of the step', 'exposed', 'on the critical path', 'tokens a step to hide it'],
    picture.lanes.map(lane => [lane.shown, seconds(lane.busy_seconds),
      percent(lane.busy_seconds / picture.step_seconds), seconds(lane.exposed_seconds),
      seconds(lane.critical_seconds), lane.lane === 'gpu' ? '' : lane.tokens_to_hide === undefined ? '–'
        : lane.tokens_to_hide === null ? 'no number' : lane.tokens_to_hide <= plan.tokens_per_step
          ? {text: 'hidden', style: 'good'} : plain(lane.tokens_to_hide)]));
  if (!picture.doubling.length) return;
  section('Twice of one thing', 'The same step on a machine that has twice of one thing.');
  table(['twice', 'a step', 'faster by'], picture.doubling.map(row => {
    if (row.step_seconds === null) return [row.what, '–', '–'];
    const gain = picture.step_seconds / row.step_seconds - 1;
    return [row.what, seconds(row.step_seconds), gain > 0.005 ? {text: percent(gain), style: 'good'}
      : 'nothing'];
  }));
}

const shades = ['#3b78c9', '#2a9d8f', '#c9762b', '#8a7fd0', '#b5455c', '#7fb069', '#767c85'];

// The lines of a tier that take most, and the rest as one.
function largest(lines) {
  const sorted = [...lines].sort((a, b) => b.taken - a.taken);
  const rest = sorted.splice(shades.length - 1);
  if (!rest.length) return sorted;
  return [...sorted, {label: 'the rest', taken: rest.reduce((sum, line) => sum + line.taken, 0),
    in_use: rest[0].in_use.map((_, at) => rest.reduce((sum, line) => sum + line.in_use[at], 0))}];
}

function memoryOf(tier) {
  const width = main.clientWidth - 32, height = 170, left = 64, bottom = 18;
  const lines = largest(tier.lines);
  const samples = lines[0].in_use.length;
  const top = 1.05 * Math.max(tier.taken, tier.budget && tier.budget < 3 * tier.taken ? tier.budget : 0, 1);
  const x = at => left + (width - left - 8) * at / samples;
  const y = count => 14 + (height - bottom - 14) * (1 - count / top);
  const svg = element('svg', {class: 'chart', viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `memory of ${tier.tier} over the step`});
  const below = new Array(samples).fill(0);
  lines.forEach((line, index) => {
    const over = [], under = [];
    for (let at = 0; at < samples; ++at) {
      under.push(`${x(at)},${y(below[at])} ${x(at + 1)},${y(below[at])}`);
      below[at] += line.in_use[at];
      over.push(`${x(at)},${y(below[at])} ${x(at + 1)},${y(below[at])}`);
    }
    const area = element('path', {class: 'area', fill: shades[index % shades.length],
      d: `M${over.join(' L')} L${under.reverse().map(two => two.split(' ').reverse().join(' ')).join(' L')} Z`});
    explain(area, `${line.label}: ${bytes(line.taken)} taken, at most ${bytes(Math.max(...line.in_use))} in use`);
    svg.append(area);
  });
  const rule = (count, style, place) => {
    svg.append(element('line', {class: style, x1: left, x2: width - 8, y1: y(count), y2: y(count)}));
    svg.append(element('text', {y: y(count) - 4, ...place}, `${style} ${bytes(count)}`));
  };
  rule(tier.taken, 'taken', {x: left + 2});
  if (tier.budget && tier.budget < top) {
    rule(tier.budget, 'budget', {x: width - 10, 'text-anchor': 'end'});
  }
  for (const share of [0, 0.5]) {
    svg.append(element('text', {x: 0, y: y(top * share) + 4}, bytes(top * share)));
  }
  main.append(element('p', {}, `${tier.tier}: ${bytes(tier.taken)} taken`
    + (tier.budget ? ` of ${bytes(tier.budget)}` : '')), svg);
  legend(lines.map((line, index) => [`${line.label} ${bytes(line.taken)}`, shades[index % shades.length]]));
}

function memory() {
  if (!shown.picture) return;
  section('Memory over the step', 'Everything is taken before the first step. Areas show what holds '
    + 'something that is still needed.');
  for (const tier of shown.picture.memory) memoryOf(tier);
}

function choices() {
  const cuts = shown.plan?.cuts ?? [];
  if (!cuts.length) return;
  const faster = shown.plan.faster_rounds;
  section('What was chosen, and the next best', !faster ? '' : `With spillway.rounds ${faster.rounds} `
    + `a step would take ${seconds(faster.step_seconds)}; gradients are rounded once a round.`);
  const words = cut => `parameters ${cut.parameters}, gradients ${cut.gradients}, state ${cut.state}, `
    + `activations ${cut.saved}, output ${cut.output}`;
  table(['blocks', {text: 'chosen', style: 'words'}, {text: 'next best', style: 'words'}, 'costs'],
    cuts.map(cut => {
      const next = cut.next_best;
      const more = next && next.step_seconds !== undefined
        ? next.step_seconds - shown.plan.step_seconds : null;
      return [`${cut.blocks} ${cut.kind}`, {text: words(cut), style: 'words'},
        {text: next ? words(next) : 'none', style: 'words'},
        next?.lacks ? `does not fit: ${bytes(next.lacks.bytes)} of ${next.lacks.tier} are missing`
          : more === null ? '–' : Math.abs(more) < 5e-7 ? 'no time'
            : `${more >= 0 ? '+' : '−'}${seconds(Math.abs(more))}`];
    }));
}

function curve(title, steps, values, points = []) {
  const kept = values.map((value, at) => [steps[at], value]).filter(([, value]) => value !== null);
  if (!kept.length) return null;
  const width = Math.max(280, Math.min(main.clientWidth - 32, 380)), height = 150, left = 52, bottom = 18;
  const all = [...kept, ...points].map(([, value]) => value);
  let low = Math.min(...all), high = Math.max(...all);
  if (high === low) [low, high] = [low - 0.5 * Math.abs(low || 1), high + 0.5 * Math.abs(high || 1)];
  const first = steps[0], last = Math.max(steps[steps.length - 1], first + 1);
  const x = step => left + (width - left - 8) * (step - first) / (last - first);
  const y = value => 8 + (height - bottom - 14) * (1 - (value - low) / (high - low));
  const svg = element('svg', {class: 'chart', viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': title});
  for (const value of [low, (low + high) / 2, high]) {
    svg.append(element('line', {class: 'rule', x1: left, x2: width - 8, y1: y(value), y2: y(value)}));
    svg.append(element('text', {x: 0, y: y(value) + 4}, plain(value)));
  }
  svg.append(element('path', {fill: 'none', stroke: 'var(--accent)', 'stroke-width': 1.6,
    d: `M${kept.map(([step, value]) => `${x(step)},${y(value)}`).join(' L')}`}));
  for (const [step, value] of points) {
    const dot = element('rect', {x: x(step) - 3, y: y(value) - 3, width: 6, height: 6, rx: 3,
      fill: 'var(--bad)'});
    explain(dot, `validation loss ${plain(value)} after step ${step}`);
    svg.append(dot);
  }
  svg.append(element('text', {x: left, y: height - 4}, `step ${first}`));
  svg.append(element('text', {x: width - 8, y: height - 4, 'text-anchor': 'end'}, `${last}`));
  return element('div', {}, element('p', {}, title), svg);
}

function history() {
  const past = shown.history;
  if (!past || !past.step.length) return;
  section('How it went', past.steps_a_point > 1 ? `A point is the mean of ${past.steps_a_point} steps.` : '');
  const curves = [curve('loss (dots: validation)', past.step, past.loss, past.validation),
    curve('norm of the gradient before clipping', past.step, past.grad_norm),
    curve('learning rate', past.step, past.lr),
    curve('tokens a second', past.step, past.tokens_per_second)];
  main.append(element('div', {class: 'charts'}, ...curves.filter(each => each)));
}

function kinds() {
  if (!shown.measured || !shown.picture) return;
  section('Predicted and measured', 'Seconds a step of each kind of operation, all lanes together.');
  const planned = shown.picture.kinds, measured = shown.measured.kinds;
  const rows = Object.entries(measured).sort((a, b) => b[1].seconds - a[1].seconds);
  table(['operation', 'ops', 'predicted', 'measured', 'difference'], rows.map(([name, use]) => {
    const expected = planned[name]?.seconds;
    if (!expected) return [name, use.ops, '–', seconds(use.seconds), '–'];
    const off = use.seconds / expected - 1;
    return [name, use.ops, seconds(expected), seconds(use.seconds),
      {text: `${off >= 0 ? '+' : '−'}${percent(Math.abs(off))}`, style: Math.abs(off) > 0.1 ? 'bad' : ''}];
  }));
}

function draw() {
  while (main.children.length > 1) main.lastChild.remove();
  facts();
  timelines();
  bounds();
  memory();
  kinds();
  history();
  choices();
  document.body.dataset.drawn = main.querySelectorAll('svg').length;
}

let width = 0;
addEventListener('resize', () => {
  if (innerWidth === width) return;
  width = innerWidth;
  draw();
});
draw();
