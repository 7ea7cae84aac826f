'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const dark = matchMedia('(prefers-color-scheme: dark)').matches;

// A name has the same colour everywhere.
function color(name) {
  let h = 7;
  for (const c of data.names[name]) h = (h * 31 + c.codePointAt(0)) >>> 0;
  return name === 0 ? '#999' : `hsl(${h % 360} 60% ${60 + h % 13}%)`;
}

function time(ns) {
  for (const [unit, n] of [['s', 1e9], ['ms', 1e6], ['µs', 1e3]]) if (ns >= n) return (ns / n).toPrecision(3) + ' ' + unit;
  return Math.round(ns) + ' ns';
}

function size(n) {
  for (const [unit, m] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) if (n >= m) return (n / m).toPrecision(3) + ' ' + unit;
  return n + ' B';
}

// canvas makes a canvas as sharp as the screen; it is w by h of CSS's pixels. One that browsers
// of phones find too large would stay empty.
function canvas(section, h) {
  const c = section.querySelector('canvas'), w = c.clientWidth;
  const d = Math.min(devicePixelRatio || 1, 8192 / h, Math.sqrt(2 ** 24 / (w * h)));
  c.style.height = h + 'px';
  c.width = w * d;
  c.height = h * d;
  const g = c.getContext('2d');
  g.scale(d, d);
  g.clearRect(0, 0, w, h);
  g.font = '11px system-ui, sans-serif';
  g.textBaseline = 'middle';
  return {c, g, w, h};
}

const view = {from: 0, to: Math.max(data.last, 1)};
const ink = dark ? '#eee' : '#222';
const labels = 16, rowHeight = 14;

// Where lanes are drawn: each has a line for its name, and the rows that are not empty.
let bottom = 0;
for (const lane of data.lanes) {
  lane.top = bottom;
  lane.drawn = lane.rows.filter(row => row.length);
  bottom += labels + lane.drawn.length * rowHeight + 4;
}

function axis(g, w, h) {
  g.fillStyle = ink;
  for (let i = 0; i <= 4; i++) {
    const x = i * w / 4;
    g.globalAlpha = 0.15;
    g.fillRect(x, 0, 1, h);
    g.globalAlpha = 0.7;
    g.textAlign = i === 0 ? 'left' : i === 4 ? 'right' : 'center';
    g.fillText(time(view.from + (view.to - view.from) * i / 4), x, h - 7);
  }
  g.textAlign = 'left';
  g.globalAlpha = 1;
}

// buckets calls f with each bucket of a row that is in view: its number and its names.
function buckets(row, f) {
  for (let i = 0; i < row.length; i += 2 + 2 * row[i + 1]) {
    const from = row[i] * data.width;
    if (from + data.width >= view.from && from <= view.to) f(row[i], row.slice(i + 2, i + 2 + 2 * row[i + 1]));
  }
}

function drawTimeline() {
  const section = document.getElementById('timeline');
  const {g, w, h} = canvas(section, bottom + 20);
  const x = ns => (ns - view.from) / (view.to - view.from) * w;
  axis(g, w, h);
  for (const lane of data.lanes) {
    g.fillStyle = ink;
    g.fillText(lane.name, 4, lane.top + labels / 2);
    lane.drawn.forEach((row, r) => {
      const top = lane.top + labels + r * rowHeight, runs = [];
      buckets(row, (b, names) => {
        let y = top;
        const from = x(b * data.width), width = Math.max(x((b + 1) * data.width) - from, 1);
        for (let k = 0; k < names.length; k += 2) { // as high as the share of the time
          const high = Math.max(names[k + 1] / data.width * (rowHeight - 1), 0.7);
          g.fillStyle = color(names[k]);
          g.fillRect(from, y, width, high);
          y += high;
        }
        const last = runs[runs.length - 1];
        if (names[1] < data.width * 0.9) return;
        if (last && last.name === names[0] && last.next === b) last.next++;
        else runs.push({name: names[0], from: b, next: b + 1});
      });
      g.fillStyle = '#000';
      for (const run of runs) { // what took all of some time is called by its name, where that has room
        const from = Math.max(x(run.from * data.width), 0), to = Math.min(x(run.next * data.width), w);
        if (to - from > g.measureText(data.names[run.name]).width + 6) g.fillText(data.names[run.name], from + 3, top + rowHeight / 2);
      }
    });
  }
}

function drawMemory() {
  const section = document.getElementById('memory');
  const kinds = Object.keys(data.memory).filter(k => k !== 'objects');
  section.hidden = kinds.length === 0;
  if (section.hidden) return;
  const {g, w, h} = canvas(section, 160);
  const top = Math.max(...kinds.map(k => data.memory[k].reduce((a, b) => Math.max(a, b), 0)));
  axis(g, w, h);
  kinds.forEach((k, i) => {
    const values = data.memory[k], y = v => h - 18 - v / top * (h - 24);
    g.strokeStyle = g.fillStyle = `hsl(${i * 100 + 10} 70% 50%)`;
    g.lineWidth = 1.5;
    g.beginPath();
    values.forEach((v, b) => {
      const at = (b * data.width - view.from) / (view.to - view.from) * w;
      if (b) g.lineTo(at, y(values[b - 1]));
      g.lineTo(at, y(v));
    });
    g.stroke();
    g.fillText(`${k}: at most ${size(values.reduce((a, b) => Math.max(a, b), 0))}`, 8, 10 + i * 14);
  });
}

function draw() {
  drawTimeline();
  drawMemory();
}

function zoom(at, factor) {
  const middle = view.from + at * (view.to - view.from);
  const wide = Math.min(Math.max((view.to - view.from) * factor, 4 * data.width), Math.max(data.last, 1));
  view.from = Math.max(0, Math.min(middle - at * wide, data.last - wide));
  view.to = view.from + wide;
  draw();
}

for (const id of ['timeline', 'memory']) {
  const section = document.getElementById(id), c = section.querySelector('canvas'), out = section.querySelector('output');
  const pointers = new Map();
  const tell = e => {
    const r = c.getBoundingClientRect(), ns = view.from + (e.clientX - r.left) / r.width * (view.to - view.from), b = Math.floor(ns / data.width);
    if (id === 'memory') {
      out.value = `${time(ns)}: ` + Object.entries(data.memory).map(([k, v]) => `${k} ${k === 'objects' ? v[b] ?? 0 : size(v[b] ?? 0)}`).join(', ');
      return;
    }
    const y = e.clientY - r.top, lane = data.lanes.findLast(l => y >= l.top && y < bottom);
    const row = lane?.drawn[Math.max(Math.floor((y - lane.top - labels) / rowHeight), 0)];
    let what = '';
    if (row) buckets(row, (n, names) => {
      if (n === b) for (let k = 0; k < names.length; k += 2) what += ` ${data.names[names[k]]} ${time(names[k + 1])},`;
    });
    out.value = lane ? `${time(ns)}, ${lane.name}: ${what.slice(0, -1) || 'nothing'} (of ${time(data.width)})` : '';
  };
  c.addEventListener('wheel', e => { // by itself it moves the page
    if (!e.ctrlKey) return;
    e.preventDefault();
    zoom((e.clientX - c.getBoundingClientRect().left) / c.clientWidth, e.deltaY > 0 ? 1.25 : 0.8);
  }, {passive: false});
  c.addEventListener('pointerdown', e => {
    pointers.set(e.pointerId, e);
    c.setPointerCapture(e.pointerId);
    tell(e);
  });
  c.addEventListener('pointermove', e => {
    const old = pointers.get(e.pointerId);
    if (!old) {
      tell(e);
      return;
    }
    if (pointers.size === 1) {
      const by = (old.clientX - e.clientX) / c.clientWidth * (view.to - view.from);
      const from = Math.max(0, Math.min(view.from + by, data.last - (view.to - view.from)));
      view.to += from - view.from;
      view.from = from;
      draw();
    } else {
      const other = [...pointers.values()].find(p => p.pointerId !== e.pointerId);
      const before = Math.abs(old.clientX - other.clientX), now = Math.abs(e.clientX - other.clientX);
      if (before > 5 && now > 5) zoom(((e.clientX + other.clientX) / 2 - c.getBoundingClientRect().left) / c.clientWidth, before / now);
    }
    pointers.set(e.pointerId, e);
  });
  for (const end of ['pointerup', 'pointercancel']) c.addEventListener(end, e => pointers.delete(e.pointerId));
}

// The flame graph: a button for each call, beneath the one that made it.
function drawFlame(path) {
  const section = document.getElementById('flame'), div = section.querySelector('div'), out = section.querySelector('output');
  const root = path[path.length - 1];
  section.hidden = data.flame.t === 0;
  div.replaceChildren();
  let deepest = 0;
  const add = (node, depth, left, width, on) => {
    if (width < 0.15) return;
    deepest = Math.max(deepest, depth);
    const b = document.createElement('button'), name = depth === 0 && path.length === 1 && node === data.flame ? 'all' : data.names[node.n];
    b.textContent = name;
    b.title = `${name}: ${time(node.t)}, itself ${time(node.s)}, ${node.c} calls`;
    b.style.cssText = `left:${left}%;width:${width}%;top:${depth * 22}px;background:${color(node.n)}`;
    b.onclick = () => {
      out.value = `${b.title}, ${(100 * node.t / data.flame.t).toFixed(1)}% of all`;
      drawFlame(on);
    };
    div.append(b);
  };
  path.slice(0, -1).forEach((node, i) => add(node, i, 0, 100, path.slice(0, i + 1)));
  const below = (node, depth, left, width, on) => {
    add(node, depth, left, width, on);
    let at = left;
    for (const k of node.k || []) {
      const wide = width * k.t / Math.max(node.t, 1);
      if (wide >= 0.15) below(k, depth + 1, at, wide, [...on, k]);
      at += wide;
    }
  };
  below(root, path.length - 1, 0, 100, path);
  div.style.height = (deepest + 1) * 22 + 'px';
}

draw();
drawFlame([data.flame]);
addEventListener('resize', draw);
