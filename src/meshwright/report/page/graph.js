// The graph: a fold for each block; what is inside is made when it is first opened.

const LAYOUT = 0, COMPUTES = 1, MOVES = 2, MEMBERS = 3;
const NAME = 0, KIND = 1, SHAPE = 2;

function shareBar(time, step, kind) {
  const fill = make("span", { class: "fill", style: `--share:${Math.min(1, time / step)}` });
  return make("span", { class: `bar ${kind}` }, fill, make("span", {}, nanoseconds(time, 3)));
}

// The rows of a unit: its first operator with what the unit costs, then those that follow it.
function unitRows(data, unit, names, times) {
  return unit[MEMBERS].map((member, place) => {
    const first = place === 0;
    return make("tr", { class: first ? "unit" : "follows" },
      make("td", { class: "name" }, names[place]),
      make("td", {}, data.texts[member[KIND]]),
      make("td", {}, data.texts[member[SHAPE]]),
      make("td", {}, first ? data.texts[unit[LAYOUT]] : "with the one above"),
      make("td", {}, first ? shareBar(times[0], data.step, "computes") : ""),
      make("td", {}, first && times[1] ? shareBar(times[1], data.step, "moves") : ""));
  });
}

function operatorTable(caption, rows) {
  const heads = ["operator", "computes what", "makes", "layout, by level", "computes", "moves"];
  const head = make("tr", {}, ...heads.map((own) => make("th", { scope: "col" }, own)));
  const table = make("table", {}, make("caption", {}, caption), make("thead", {}, head),
    make("tbody", {}, ...rows));
  return make("div", { class: "scroll", tabindex: "0" }, table);
}

const sum = (data, units, column) => units.reduce((own, n) => own + data.units[n][column], 0);

function operatorCount(data, units) {
  return units.reduce((own, n) => own + data.units[n][MEMBERS].length, 0);
}

function costs(data, units) {
  const share = (column) => percent(sum(data, units, column) / data.step);
  return `computes ${share(COMPUTES)}, moves ${share(MOVES)} of the step (predicted)`;
}

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
  const rows = units.flatMap((n) => {
    const unit = data.units[n];
    const names = unit[MEMBERS].map((member) => member[NAME]);
    return unitRows(data, unit, names, [unit[COMPUTES], unit[MOVES]]);
  });
  return [operatorTable("Operators, predicted times in a step", rows)];
}

function layerTable(data, block) {
  const rows = block.copies[0].flatMap((n, place) => {
    const together = block.copies.map((copy) => copy[place]);
    const times = [sum(data, together, COMPUTES), sum(data, together, MOVES)];
    return unitRows(data, data.units[n], block.names[place], times);
  });
  const count = block.copies.length;
  return operatorTable(`All ${count} copies together; layouts are those of the first`, rows);
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
  byId("graph-view").append(...data.blocks.map((block) => blockFold(data, block)));
}
