// The timeline: spans of rows, drawn by the library's custom series; what is narrower than a pixel
// is gathered in it, as high as the share of the pixel that is held.

const HEAD = 8, FOOT = 74;

// How high a row is: few rows may be higher.
const rowHeight = (rows) => Math.max(22, Math.min(38, Math.floor(260 / rows)));

// Columns of whole numbers become arrays of starts and ends.
function unpacked(row) {
  const count = row.hold.length;
  const start = new Float64Array(count), end = new Float64Array(count);
  let now = 0;
  for (let n = 0; n < count; n += 1) {
    start[n] = now + row.gap[n];
    now = end[n] = start[n] + row.hold[n];
  }
  return { ...row, start, end };
}

// The first span that ends after a moment.
function firstAfter(row, moment) {
  let low = 0, high = row.end.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.end[middle] > moment) high = middle;
    else low = middle + 1;
  }
  return low;
}

// What of a row lies in a window, by kind: [left, width, height] each, in pixels.
function visible(row, kinds, from, to, scale) {
  const found = Array.from({ length: kinds }, () => []);
  const held = new Float64Array(kinds);
  let column = -1;
  const flush = () => {
    const total = held.reduce((a, b) => a + b, 0);
    if (column >= 0 && total > 0) {
      found[held.indexOf(Math.max(...held))].push([column, 1, Math.min(1, total)]);
    }
    held.fill(0);
  };
  for (let n = firstAfter(row, from); n < row.start.length && row.start[n] < to; n += 1) {
    const left = Math.max(0, (row.start[n] - from) * scale);
    const right = (Math.min(to, row.end[n]) - from) * scale;
    if (right - left >= 1) {
      flush();
      column = -1;
      found[row.kind[n]].push([left, right - left, 1]);
    } else {
      if (Math.floor(left) !== column) {
        flush();
        column = Math.floor(left);
      }
      held[row.kind[n]] += right - left;
    }
  }
  flush();
  return found;
}

const Spans = echarts.graphic.extendShape({
  shape: { boxes: [], x: 0, y: 0, height: 0 },
  buildPath(pen, shape) {
    for (const [left, width, share] of shape.boxes) {
      const height = shape.height * share;
      // Neighbours stay apart where there is room for it.
      const wide = width > 5 ? width - 1 : width;
      pen.rect(shape.x + left, shape.y + shape.height - height, wide, height);
    }
  },
});
echarts.graphic.registerShape("meshwrightSpans", Spans);

class Timeline {
  constructor(place, data) {
    this.data = data;
    this.rows = data.rows.map(unpacked);
    this.place = place;
    this.height = rowHeight(data.rows.length);
    this.window = [0, data.step];
    this.chart = chart(place, () => this.options());
    this.chart.on("datazoom", () => this.follow());
    this.chart.getZr().on("mousemove", (event) => this.point(event.offsetX, event.offsetY));
    this.chart.getZr().on("globalout", () => this.tell(null));
    place.addEventListener("keydown", (event) => this.key(event));
  }

  options() {
    const narrow = this.place.clientWidth < 600;
    const left = narrow ? 92 : 190;
    this.fills = this.data.kinds.map((_, n) => ({
      image: tile(colour(`kind-${n}`), n), repeat: "repeat" }));
    return {
      animation: false,
      grid: { left, right: 16, top: HEAD, bottom: FOOT },
      xAxis: { type: "value", min: 0, max: this.data.step, ...axis(),
        axisLabel: { color: colour("ink"), hideOverlap: true,
          formatter: (value) => nanoseconds(value, this.digits()) },
        splitNumber: narrow ? 3 : 8 },
      yAxis: { type: "category", inverse: true, data: this.rows.map((row) => this.title(row, narrow)),
        ...axis(), axisTick: { show: false },
        axisLabel: { color: colour("ink"), width: left - 12, overflow: "truncate", fontSize: 11,
          interval: 0 } },
      dataZoom: [
        { type: "slider", filterMode: "none", bottom: 10, height: 26, showDataShadow: false,
          startValue: this.window[0], endValue: this.window[1],
          textStyle: { color: colour("ink") },
          labelFormatter: (value) => nanoseconds(value, 4), borderColor: colour("line") },
        { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: true,
          moveOnMouseWheel: false, startValue: this.window[0], endValue: this.window[1],
          preventDefaultMouseMove: false },
      ],
      series: [{ type: "custom", clip: true, silent: true, encode: { x: [0, 1], y: 2 },
        data: this.rows.map((_, n) => [0, this.data.step, n]),
        renderItem: (params, api) => this.row(params, api) }],
    };
  }

  title(row, narrow) {
    if (narrow) return row.what === "compute" ? row.name : row.what.split("/").at(-1);
    const what = row.what === "compute" ? row.name : `  ${row.name}`;
    return row.what === "compute" && row.alike > 1 ? `${what} (for ${row.alike})` : what;
  }

  // How many digits tell two ticks of the axis apart.
  digits() {
    const [from, to] = this.window;
    return Math.min(9, Math.max(3, 2 + Math.ceil(Math.log10(Math.max(to, 1) / (to - from)))));
  }

  row(params, api) {
    const number = api.value(2), [from, to] = this.window;
    const { x, width } = params.coordSys;
    const middle = api.coord([from, number])[1];
    const found = visible(this.rows[number], this.fills.length, from, to, width / (to - from));
    const height = this.height - 5, y = middle - height / 2;
    const children = found.map((boxes, kind) => ({
      type: "meshwrightSpans", shape: { boxes, x, y, height }, style: { fill: this.fills[kind] } }));
    return { type: "group", children: children.filter((own) => own.shape.boxes.length) };
  }

  follow() {
    const { startValue, endValue } = this.chart.getOption().dataZoom[0];
    this.window = [startValue, Math.max(endValue, startValue + 1)];
    this.place.dataset.from = String(this.window[0]);
    this.place.dataset.to = String(this.window[1]);
  }

  // Show a window of the step.
  show(from, to) {
    const length = Math.min(this.data.step, Math.max(10, to - from));
    const begin = Math.min(Math.max(0, from), this.data.step - length);
    this.chart.dispatchAction({ type: "dataZoom", startValue: begin, endValue: begin + length });
    this.follow();
  }

  zoom(factor) {
    const [from, to] = this.window, middle = (from + to) / 2;
    this.show(middle - (to - from) * factor / 2, middle + (to - from) * factor / 2);
  }

  move(share) {
    const [from, to] = this.window, by = (to - from) * share;
    this.show(from + by, to + by);
  }

  all() {
    this.show(0, this.data.step);
  }

  key(event) {
    const does = { ArrowLeft: () => this.move(-0.25), ArrowRight: () => this.move(0.25),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      0: () => this.all() }[event.key];
    if (does && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      does();
    }
  }

  // What lies under the pointer.
  point(x, y) {
    if (!this.chart.containPixel("grid", [x, y])) return this.tell(null);
    const [moment, number] = this.chart.convertFromPixel({ gridIndex: 0 }, [x, y]);
    const row = this.rows[number];
    const n = row ? firstAfter(row, moment) : 0;
    if (!row || n >= row.start.length || row.start[n] > moment) return this.tell(null);
    return this.tell(this.words(row, n));
  }

  words(row, n) {
    const label = row.label[n];
    const what = label < 0 ? "several" : this.data.labels[label][1];
    const turn = this.data.microBatches > 1 && label >= 0
      ? `, micro-batch ${row.micro[n] + 1} of ${this.data.microBatches}` : "";
    return `${row.name}: ${this.data.kinds[row.kind[n]]} — ${what}${turn}; from `
      + `${nanoseconds(row.start[n])} for ${nanoseconds(row.hold[n])} (predicted)`;
  }

  tell(words) {
    this.readout.textContent = words || "Point at a span to see what it is.";
  }
}

function timelineLegend(data) {
  const used = new Set(data.rows.flatMap((row) => [...new Set(row.kind)]));
  return make("ul", { class: "legend" }, ...data.kinds.flatMap((name, kind) => (used.has(kind)
    ? [make("li", {}, make("span", { class: `swatch k${kind}` }), name)] : [])));
}

function timelineButtons(view) {
  const button = (text, label, does) => {
    const own = make("button", { type: "button", "aria-label": label }, text);
    own.addEventListener("click", does);
    return own;
  };
  return make("div", { class: "choices" },
    button("Zoom in", "Zoom in", () => view.zoom(0.5)),
    button("Zoom out", "Zoom out", () => view.zoom(2)),
    button("◀", "Earlier", () => view.move(-0.25)),
    button("▶", "Later", () => view.move(0.25)),
    button("Whole step", "Show the whole step", () => view.all()));
}

// The same as a table, for those who do not see the drawing.
function busyTable(data) {
  const heads = ["row", ...data.kinds, "in all", "of the step"];
  const rows = data.rows.map((row) => {
    const times = data.kinds.map(() => 0);
    row.hold.forEach((hold, n) => { times[row.kind[n]] += hold; });
    const all = times.reduce((a, b) => a + b, 0);
    const cells = [...times.map((own) => (own ? nanoseconds(own) : "")), nanoseconds(all),
      percent(all / data.step)];
    return make("tr", {}, make("th", { scope: "row" }, row.name),
      ...cells.map((own) => make("td", { class: "number" }, own)));
  });
  const head = make("tr", {}, ...heads.map((own) => make("th", { scope: "col" }, own)));
  const table = make("table", {}, make("caption", {}, "How long each is busy, predicted"),
    make("thead", {}, head), make("tbody", {}, ...rows));
  return [make("div", { class: "scroll", tabindex: "0" }, table)];
}

function notes(data) {
  const words = [];
  if (data.leftOut) words.push(`${data.leftOut} more rows are left out; a trace has them all.`);
  if (data.joinedBelow) {
    words.push(`Neighbours of one kind below ${nanoseconds(data.joinedBelow)} are joined.`);
  }
  return make("p", { class: "note" }, words.join(" "));
}

function startTimeline(data) {
  const place = make("div", { id: "timeline-chart", class: "chart", tabindex: "0", role: "img",
    "aria-label": "Timeline of devices and links; the table below has how busy each is",
    style: `height:${data.rows.length * rowHeight(data.rows.length) + HEAD + FOOT}px` });
  const readout = make("p", { class: "readout", "aria-live": "polite" });
  byId("timeline-view").append(timelineLegend(data), place, readout);
  const view = new Timeline(place, data);
  view.readout = readout;
  view.follow();
  view.tell(null);
  place.before(timelineButtons(view));
  byId("timeline-view").append(notes(data),
    fold("How busy each row is", "as a table", () => busyTable(data)));
  painted(() => paintSwatches(data));
  return view;
}

function paintSwatches(data) {
  data.kinds.forEach((_, kind) => {
    for (const own of document.querySelectorAll(`.swatch.k${kind}`)) {
      own.style.backgroundImage = `url(${tile(colour(`kind-${kind}`), kind).toDataURL()})`;
    }
  });
}
