// Axes, scales, and the reading of values under the pointer or the arrow keys.

const LEFT = 58;
const RIGHT = 14;

// Adds a cross-hair and a box of values to a picture, by pointer and by arrow keys.
function readable(picture, stops, [top, bottom], read, width) {
  const hair = svg("line", { class: "hair", y1: top, y2: bottom, visibility: "hidden" });
  const box = el("div", { class: "reading", hidden: true, role: "status" });
  let current = -1;
  const show = (index) => {
    current = Math.max(0, Math.min(stops.length - 1, index));
    const [title, ...rows] = read(current);
    fill(hair, { x1: stops[current], x2: stops[current], visibility: "visible" }, []);
    box.replaceChildren(
      el("b", {}, title),
      ...rows.map(([name, value, kind]) =>
        el("div", {}, el("i", { class: `key ${kind}` }), el("span", {}, name), el("span", { class: "num" }, value)),
      ),
    );
    box.hidden = false;
    const room = width - box.offsetWidth;
    const beside =
      stops[current] + 12 + box.offsetWidth > width ? stops[current] - 12 - box.offsetWidth : stops[current] + 12;
    box.style.left = `${Math.max(0, Math.min(room, beside))}px`;
    box.style.top = `${top}px`;
  };
  const hide = () => {
    hair.setAttribute("visibility", "hidden");
    box.hidden = true;
  };
  picture.append(hair);
  picture.addEventListener("pointermove", (event) =>
    show(nearest(stops, event.clientX - picture.getBoundingClientRect().left)),
  );
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(current + step);
  });
  return el("div", { class: "picture" }, picture, box);
}

function nearest(stops, place) {
  let best = 0;
  stops.forEach((stop, index) => {
    if (Math.abs(stop - place) < Math.abs(stops[best] - place)) best = index;
  });
  return best;
}

function label(words, x, y) {
  return svg("text", { class: "label", x, y }, words);
}

function yAxis(y, values, name, width) {
  return values.map((value) => [
    svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
    svg("text", { class: "tick", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, name(value)),
  ]);
}

function timeAxis(x, span, bottom, width) {
  const seconds = ticks(span / 1e6, Math.max(2, Math.floor(width / 110)));
  return seconds.map((second) =>
    svg("text", { class: "tick", x: x(second * 1e6), y: bottom + 18, "text-anchor": "middle" }, `${digits(second)} s`),
  );
}

// A line that breaks where a value is missing.
function path(points, y) {
  let pen = "M";
  let drawn = "";
  for (const [across, value] of points) {
    if (value === null) pen = "M";
    else {
      drawn += `${pen}${across.toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    }
  }
  return drawn;
}

function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

function ticks(top, most = 4) {
  const rough = top / most;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * size).find((candidate) => candidate >= rough - 1e-12);
  const all = [];
  for (let index = 0; index * step <= top * (1 + 1e-9); index += 1) all.push(Number((index * step).toPrecision(12)));
  return all;
}

function niceTop(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10]
    .map((times) => times * size)
    .find((candidate) => candidate >= value * (1 - 1e-12));
}

function logSpan(values) {
  const low = 10 ** (Math.floor(Math.log10(Math.min(...values)) * 3 + 1e-9) / 3);
  const high = 10 ** (Math.ceil(Math.log10(Math.max(...values)) * 3 - 1e-9) / 3);
  return high / low < 4 ? [low / 2, high * 2] : [low, high];
}

function logTicks(low, high) {
  const all = [];
  for (let size = 10 ** Math.floor(Math.log10(low)); size <= high; size *= 10) {
    for (const times of high / low > 2_000 ? [1] : [1, 2, 5]) all.push(times * size);
  }
  return all.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
}

// Those with room for a label; the last ones matter most.
function apart(values, place, room) {
  return values.reduceRight(
    (kept, value) => (kept.length && place(kept[0]) - place(value) < room ? kept : [value, ...kept]),
    [],
  );
}
