// Quantities as text, as base/quantities.py writes them, and elements with escaped texts.

const TIMES = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];
const SIZES = [[2 ** 50, "PiB"], [2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"],
  [2 ** 10, "KiB"], [1, "B"]];

function scaled(value, scale, digits) {
  const [factor, unit] = scale.find(([own]) => Math.abs(value) >= own) || scale.at(-1);
  return `${Number((value / factor).toPrecision(digits))} ${unit}`;
}

const nanoseconds = (value, digits = 4) => (value ? scaled(value, TIMES, digits) : "0 s");
const bytes = (value, digits = 4) => scaled(value, SIZES, digits);
// A distance between ticks of bytes, at most so large that there are `count` of them.
function tickOfBytes(most, count) {
  const least = most / count;
  const [factor] = SIZES.find(([own]) => least >= own) || SIZES.at(-1);
  const steps = [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 512, 1024];
  return factor * steps.find((own) => own * factor >= least);
}

const percent = (share) => `${(100 * share).toFixed(1)}%`;

// An element; children that are strings become text, so that no name is ever read as markup.
function make(name, attributes = {}, ...children) {
  const own = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) own.setAttribute(key, value === true ? "" : value);
  }
  own.append(...children);
  return own;
}

const byId = (id) => document.getElementById(id);
