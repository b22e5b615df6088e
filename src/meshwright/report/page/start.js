// Everything in the order of the page; `data-ready` says when the page can be used.

const data = JSON.parse(byId("data").textContent);
startMachine();
startTables();
startGraph(data.graph);
startTheme();
const timeline = startTimeline(data.timeline);
startMemory(data.memory);
startProgress(data.search);
document.documentElement.dataset.ready = String(Math.round(performance.now()));
