// Memory over time: stacked by kind, with the limit; one device at a time.

const HOLDS = ["parameters", "optimizer", "gradients", "activations", "workspace",
  "framework"];

function column(device, kind) {
  const own = device[kind];
  return device.ns.map((moment, n) => [moment, Array.isArray(own) ? own[n] : own]);
}

function peak(device) {
  const value = (kind, n) => (Array.isArray(device[kind]) ? device[kind][n] : device[kind]);
  const totals = device.ns.map((_, n) => HOLDS.reduce((own, kind) => own + value(kind, n), 0));
  return Math.max(...totals);
}

function memoryOptions(data, device, scale, narrow) {
  const fill = (n) => ({ image: tile(colour(`hold-${n}`), n), repeat: "repeat" });
  const most = 1.08 * (scale === "limit" ? Math.max(data.limit, peak(device)) : peak(device));
  const series = HOLDS.map((kind, n) => ({
    name: kind, type: "line", step: "end", stack: "held", symbol: "none", data: column(device, kind),
    lineStyle: { width: 1, color: colour("quiet") }, itemStyle: { color: fill(n) },
    areaStyle: { color: fill(n), opacity: 1 },
    emphasis: { disabled: true },
  }));
  series[0].markLine = { symbol: "none", silent: true, lineStyle: { color: colour("bad"), width: 2 },
    label: { color: colour("ink"), position: "insideEndTop",
      formatter: `limit ${bytes(data.limit)}` },
    data: [{ yAxis: data.limit }] };
  return {
    animation: false,
    legend: { top: 0, icon: "rect", itemWidth: 26, itemHeight: 13, textStyle: { color: colour("ink") }, data: HOLDS, selectedMode: false },
    grid: { left: narrow ? 62 : 80, right: 16, top: narrow ? 64 : 40, bottom: 74 },
    tooltip: { trigger: "axis", ...tooltip(), valueFormatter: (own) => bytes(own),
      axisPointer: { label: { formatter: (own) => nanoseconds(own.value) } } },
    xAxis: { type: "value", min: 0, max: data.step, ...axis(), splitNumber: narrow ? 3 : 8,
      axisLabel: { color: colour("ink"), hideOverlap: true,
        formatter: (own) => nanoseconds(own, 3) } },
    yAxis: { type: "value", max: most, interval: tickOfBytes(most, 5), ...axis(),
      axisLabel: { color: colour("ink"), formatter: (own) => bytes(own, 3), showMaxLabel: false, hideOverlap: true } },
    dataZoom: [{ type: "slider", filterMode: "none", bottom: 10, height: 26, showDataShadow: false,
      textStyle: { color: colour("ink") }, borderColor: colour("line"),
      labelFormatter: (own) => nanoseconds(own, 3) }],
    series,
  };
}

function memoryWords(data, device) {
  const most = peak(device), fits = most <= data.limit ? "fits" : "does NOT fit";
  return `${device.name} holds at most ${bytes(most)} of ${bytes(data.limit)} and ${fits} (predicted).`;
}

// Where most of the limit is free, the drawing leaves that out at first.
function scaleChoice(value) {
  const own = make("select", { id: "memory-scale" }, make("option", { value: "held" }, "what is held"),
    make("option", { value: "limit" }, "the limit"));
  own.value = value;
  return own;
}

function startMemory(data) {
  const options = data.devices.map((own, n) => make("option", { value: n }, own.name));
  const select = make("select", { id: "memory-device" }, ...options);
  const label = make("label", { for: "memory-device" }, "Device, the fullest first: ");
  const words = make("p", { id: "memory-words" });
  const place = make("div", { id: "memory-chart", class: "chart", role: "img" });
  byId("memory-view").append(make("p", { class: "choices" }, label, select), words, place);
  const scale = scaleChoice(2 * peak(data.devices[0]) < data.limit ? "held" : "limit");
  scale.addEventListener("change", redraw);
  select.after(make("label", { for: "memory-scale" }, "drawn up to "), scale);
  let device = data.devices[0];
  const own = chart(place,
    () => memoryOptions(data, device, scale.value, place.clientWidth < 600));
  const show = () => {
    device = data.devices[Number(select.value)];
    words.textContent = memoryWords(data, device);
    place.setAttribute("aria-label", words.textContent);
    redraw();
  };
  select.addEventListener("change", show);
  show();
  return own;
}
