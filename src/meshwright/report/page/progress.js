// How the search went, and time against memory.

const seconds = (value, digits = 4) => nanoseconds(value * 1e9, digits);

function progressOptions(data, narrow) {
  const points = data.history.map(([at, step]) => [at, step]);
  points.push([Math.max(data.seconds, points.at(-1)[0]), data.step]);
  const line = { symbol: "none", silent: true, lineStyle: { color: colour("hold-2"), width: 2 },
    label: { color: colour("ink"), position: "insideStartBottom",
      formatter: `bound ${seconds(data.bound)}` },
    data: data.bound ? [{ yAxis: data.bound }] : [] };
  return {
    animation: false,
    grid: { left: narrow ? 62 : 80, right: 24, top: 34, bottom: 44 },
    tooltip: { trigger: "axis", ...tooltip(), valueFormatter: (own) => `${seconds(own)} predicted`,
      axisPointer: { label: { formatter: (own) => `after ${seconds(own.value)}` } } },
    xAxis: { type: "value", name: "time of search", nameLocation: "middle", nameGap: 28, ...axis(),
      axisLabel: { color: colour("ink"), formatter: (own) => seconds(own, 3), hideOverlap: true } },
    yAxis: { type: "value", name: "best step", min: 0, ...axis(),
      axisLabel: { color: colour("ink"), formatter: (own) => seconds(own, 3) } },
    series: [{ type: "line", step: "end", name: "best step so far", data: points, symbolSize: 7,
      itemStyle: { color: colour("kind-0") }, lineStyle: { width: 2 }, markLine: line }],
  };
}

function frontOptions(data, narrow) {
  const points = (own) => own.map(([name, step, held]) => ({ name, value: [held, step] }));
  const dots = (name, own, symbol, tint, size) => ({ type: "scatter", name, symbol,
    symbolSize: size, data: points(own), itemStyle: { color: colour(tint),
      borderColor: colour("ink"), borderWidth: 1 } });
  const best = dots("the plan", [["the plan", data.step, data.memory]], "diamond", "kind-1", 18);
  best.markLine = { symbol: "none", silent: true, lineStyle: { color: colour("bad"), width: 2 },
    label: { color: colour("ink"), formatter: `limit ${bytes(data.limit)}`,
      position: "insideEndTop" },
    data: [{ xAxis: data.limit }] };
  return {
    animation: false,
    legend: { top: 0, textStyle: { color: colour("ink") } },
    grid: { left: narrow ? 62 : 80, right: 24, top: narrow ? 78 : 54, bottom: 44 },
    tooltip: { ...tooltip(), formatter: ({ name, value }) =>
      `${echarts.format.encodeHTML(name)}<br>${seconds(value[1])}, ${bytes(value[0])} predicted` },
    xAxis: { type: "log", logBase: 2, name: "peak memory",
      nameLocation: "middle", nameGap: 28, min: (own) => Math.min(own.min, data.limit) / 1.5,
      max: (own) => Math.max(own.max, data.limit) * 1.5, ...axis(),
      axisLabel: { color: colour("ink"), formatter: (own) => bytes(own, 3), hideOverlap: true,
        showMinLabel: false, showMaxLabel: false } },
    yAxis: { type: "log", name: "step", ...axis(), nameLocation: "end",
      axisLabel: { color: colour("ink"), formatter: (own) => seconds(own, 3) } },
    series: [dots("baselines", data.baselines, "triangle", "hold-1", 11),
      dots("none is better in both", data.front, "emptyCircle", "kind-0", 10), best],
  };
}

function startProgress(data) {
  const narrow = (place) => place.clientWidth < 600;
  const progress = byId("progress-chart"), front = byId("front-chart");
  if (progress) chart(progress, () => progressOptions(data, narrow(progress)));
  chart(front, () => frontOptions(data, narrow(front)));
}
