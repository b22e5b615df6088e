// Colours: those of the style sheet, light or dark, and charts that follow them.

const THEMES = ["system", "light", "dark"];
const painters = [];
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// A tile with a pattern over a colour, so that kinds differ without colours too.
function tile(base, number) {
  const size = 8, canvas = make("canvas", { width: size, height: size });
  const pen = canvas.getContext("2d");
  pen.fillStyle = base;
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = pen.fillStyle = colour("ink-on-colour");
  pen.globalAlpha = 0.55;
  PATTERNS[number % PATTERNS.length](pen, size);
  return canvas;
}

function strokes(pen, ...lines) {
  pen.beginPath();
  for (const [a, b, c, d] of lines) {
    pen.moveTo(a, b);
    pen.lineTo(c, d);
  }
  pen.stroke();
}

const PATTERNS = [
  () => {},
  (pen, n) => strokes(pen, [-1, n / 2 + 1, n / 2 + 1, -1], [n / 2 - 1, n + 1, n + 1, n / 2 - 1]),
  (pen, n) => pen.fillRect(n / 2 - 1, n / 2 - 1, 2, 2),
  (pen, n) => strokes(pen, [0, n / 2, n, n / 2]),
  (pen, n) => strokes(pen, [n / 2, 0, n / 2, n]),
  (pen, n) => strokes(pen, [n / 2, 0, n / 2, n], [0, n / 2, n, n / 2]),
  (pen, n) => strokes(pen, [-1, n / 2 - 1, n / 2 + 1, n + 1], [n / 2 - 1, -1, n + 1, n / 2 + 1]),
];

// Runs now, and whenever the theme or the width changes.
function painted(paint) {
  painters.push(paint);
  paint();
}

// A chart; `options` makes its options.
function chart(place, options) {
  const own = echarts.init(place, null, { renderer: "canvas" });
  painted(() => {
    own.resize();
    own.setOption(options(), { notMerge: true });
  });
  return own;
}

const axis = () => ({
  axisLine: { lineStyle: { color: colour("line") } },
  axisLabel: { color: colour("ink") },
  nameTextStyle: { color: colour("quiet") },
  splitLine: { lineStyle: { color: colour("line"), opacity: 0.5 } },
});

const tooltip = () => ({
  backgroundColor: colour("raised"),
  borderColor: colour("line"),
  textStyle: { color: colour("ink"), fontSize: 13 },
  confine: true,
});

function redraw() {
  for (const paint of painters) paint();
}

function setTheme(name) {
  const dark = name === "dark" || (name === "system" && prefersDark.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = `Theme: ${name}`;
  byId("theme").dataset.choice = name;
  redraw();
}

function startTheme() {
  const button = byId("theme");
  button.addEventListener("click", () => {
    const next = THEMES.indexOf(button.dataset.choice) + 1;
    setTheme(THEMES[next % THEMES.length]);
  });
  prefersDark.addEventListener("change", () => setTheme(button.dataset.choice));
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(redraw);
  });
  setTheme("system");
}
