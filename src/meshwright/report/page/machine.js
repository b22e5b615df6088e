// Cells of the machine, coloured by the role that the reader chooses.

const COLOURS = 8, FILLS = 4;

// The classes of a cell by its part, as picture.py gives them.
function coloursOf(part) {
  const fill = Math.floor(part / COLOURS) % FILLS;
  return fill ? `c${part % COLOURS} p${fill}` : `c${part % COLOURS}`;
}

function colourBy(kind, role) {
  for (const button of kind.querySelectorAll("button[data-role]")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.role) === role));
  }
  for (const cell of kind.querySelectorAll(".cell[data-parts]")) {
    const part = Number(cell.dataset.parts.split(" ")[role] || 0);
    cell.className = `cell ${coloursOf(part)}`;
  }
}

function startMachine() {
  for (const kind of document.querySelectorAll("details.kind")) {
    for (const button of kind.querySelectorAll("button[data-role]")) {
      button.addEventListener("click", () => colourBy(kind, Number(button.dataset.role)));
    }
  }
}
