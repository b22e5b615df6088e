// The graph: a fold for each block; what is inside is made when it is first opened.

const LAYOUT = 0, COMPUTES = 1, MOVES = 2, MEMBERS = 3;
const NAME = 0, KIND = 1, SHAPE = 2;

function shareBar(time, most, kind) {
  const fill = make("span", { class: "fill", style: `--share:${time / most}` });
  const track = make("span", { class: "track" }, fill);
  return make("span", { class: `bar ${kind}` }, track, make("span", {}, nanoseconds(time, 3)));
}

// The rows of a unit: its first operator with what the unit costs, then those that follow it.
function unitRows(data, unit, names, times, most) {
  return unit[MEMBERS].map((member, place) => {
    const first = place === 0;
    return make("tr", { class: first ? "unit" : "follows" },
      make("td", { class: "name" }, names[place]),
      make("td", { class: "text" }, data.texts[member[KIND]]),
      make("td", { class: "text" }, data.texts[member[SHAPE]]),
      make("td", { class: "text" }, first ? data.texts[unit[LAYOUT]] : "as above"),
      make("td", {}, first ? shareBar(times[0], most, "computes") : ""),
      make("td", {}, first && times[1] ? shareBar(times[1], most, "moves") : ""));
  });
}

function operatorTable(caption, rows) {
  const heads = ["operator", "kind", "makes", "layout, by level", "computes", "moves"];
  const head = make("tr", {}, ...heads.map((own) => make("th", { scope: "col" }, own)));
  const table = make("table", {}, make("caption", {}, caption), make("thead", {}, head),
    make("tbody", {}, ...rows));
  return make("div", { class: "scroll", tabindex: "0" }, table);
}

const sum = (data, units, column) => units.reduce((own, n) => own + data.units[n][column], 0);

function operatorCount(data, units) {
  return units.reduce((own, n) => own + data.units[n][MEMBERS].length, 0);
}

// What units take of all that is computed and moved, on whatever device.
function costs(data, units) {
  const share = (column) => percent(sum(data, units, column) / Math.max(1, data.totals[column]));
  return `${share(COMPUTES)} of the computing, ${share(MOVES)} of the moving (predicted)`;
}

const longest = (times) => Math.max(1, ...times.flat());

// A fold that is filled when it is first opened.
function fold(title, note, fill, open = false) {
  const own = make("details", { open }, make("summary", {}, make("strong", {}, title), ` — ${note}`));
  let filled = false;
  const opened = () => {
    if (own.open && !filled) own.append(...fill());
    filled ||= own.open;
  };
  own.addEventListener("toggle", opened);
  opened();
  return own;
}

function copyTable(data, units) {
  const times = units.map((n) => data.units[n].slice(COMPUTES, MEMBERS));
  const rows = units.flatMap((n, place) => {
    const names = data.units[n][MEMBERS].map((member) => member[NAME]);
    return unitRows(data, data.units[n], names, times[place], longest(times));
  });
  return [operatorTable("Operators, with predicted times in a step", rows)];
}

function layerTable(data, block) {
  const times = block.copies[0].map((_, place) => {
    const together = block.copies.map((copy) => copy[place]);
    return [sum(data, together, COMPUTES), sum(data, together, MOVES)];
  });
  const rows = block.copies[0].flatMap((n, place) =>
    unitRows(data, data.units[n], block.names[place], times[place], longest(times)));
  const count = block.copies.length;
  return operatorTable(`All ${count} copies together, predicted; layouts are those of the first`, rows);
}

function copies(data, block) {
  const count = block.copies.length;
  const each = block.copies.map((units, n) => fold(
    `copy ${n + 1} of ${count}`, costs(data, units), () => copyTable(data, units)));
  return make("details", { class: "copies" }, make("summary", {}, `each of the ${count} copies`),
    ...each);
}

function blockFold(data, block) {
  const count = block.copies.length, units = block.copies.flat();
  const operators = operatorCount(data, block.copies[0]);
  const some = `${operators} operator${operators === 1 ? "" : "s"}`;
  if (count === 1) {
    const first = data.units[units[0]][MEMBERS][0][NAME];
    const title = operators === 1 ? first : `${first} … (${some})`;
    return fold(title, costs(data, units), () => copyTable(data, units));
  }
  return fold(`${count} × a layer of ${some}`, costs(data, units),
    () => [layerTable(data, block), copies(data, block)]);
}

function startGraph(data) {
  const all = data.units.map((_, n) => n);
  data.totals = [0, sum(data, all, COMPUTES), sum(data, all, MOVES)];
  byId("graph-view").append(...data.blocks.map((block) => blockFold(data, block)));
}
