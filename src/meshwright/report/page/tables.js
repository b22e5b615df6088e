// Tables: a click on a head sorts by its column; long tables have a field that seeks in all rows.

const SEEK_FROM = 12;
const FACTORS = { ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, B: 1, KiB: 2 ** 10, MiB: 2 ** 20,
  GiB: 2 ** 30, TiB: 2 ** 40, PiB: 2 ** 50, "GB/s": 1e9, "MB/s": 1e6, "TB/s": 1e12 };

// A number with its unit as a number, NaN if a cell has none.
function quantity(text) {
  const found = /^[+-]?[\d,.]+(?:e[+-]?\d+)?/.exec(text);
  if (!found) return NaN;
  const unit = text.slice(found[0].length).trim().split(/[\s;]/)[0];
  return Number(found[0].replaceAll(",", "")) * (FACTORS[unit] || 1);
}

function compared(one, other) {
  const [a, b] = [quantity(one), quantity(other)];
  if (Number.isNaN(a) && Number.isNaN(b)) return one.localeCompare(other);
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) ? 1 : -1;
  return a - b;
}

function sortBy(table, heads, number) {
  const upward = heads[number].getAttribute("aria-sort") === "descending";
  const body = table.tBodies[0], cell = (row) => row.cells[number].textContent.trim();
  const rows = [...body.rows].sort((one, other) => compared(cell(one), cell(other)));
  body.append(...(upward ? rows : rows.reverse()));
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[number].setAttribute("aria-sort", upward ? "ascending" : "descending");
}

function seekIn(table, text) {
  const words = text.toLowerCase().split(/\s+/);
  for (const row of table.tBodies[0].rows) {
    const told = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => told.includes(word));
  }
}

function startTables() {
  for (const table of document.querySelectorAll("main table")) {
    const rows = table.tBodies[0].rows.length;
    if (rows < 3) continue;
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, number) => {
      const button = make("button", { type: "button" }, head.textContent);
      button.addEventListener("click", () => sortBy(table, heads, number));
      head.replaceChildren(button);
    });
    if (rows < SEEK_FROM) continue;
    const field = make("input", { class: "seek", type: "search", placeholder: `seek in ${rows} rows`,
      "aria-label": `seek in: ${table.caption.textContent}` });
    field.addEventListener("input", () => seekIn(table, field.value));
    table.parentElement.before(field);
  }
}
