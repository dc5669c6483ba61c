// The two charts, as SVG: rate and lateness over time, and durations by percentile.

const TIMELINE_HEIGHT = 356;
const LATENCY_HEIGHT = 250;

function timelineChart(moments, step) {
  return responsive(TIMELINE_HEIGHT, (width) => {
    const rate = moments.map((m) => m.sent / (step / 1e6));
    const x = scale(0, moments.length * step, LEFT, width - RIGHT);
    const upper = { top: 24, bottom: 158 };
    const lower = { top: 206, bottom: 330 };
    const most = niceTop(Math.max(1, ...rate));
    const late = niceTop(Math.max(1_000, ...moments.map((m) => m.late_p99_us ?? 0)));
    const yRate = scale(0, most, upper.bottom, upper.top);
    const yLate = scale(0, late, lower.bottom, lower.top);
    const at = (index) => x((index + 0.5) * step);
    const picture = svg(
      "svg",
      {
        viewBox: `0 0 ${width} ${TIMELINE_HEIGHT}`,
        width,
        height: TIMELINE_HEIGHT,
        role: "img",
        tabindex: 0,
        "aria-label": timelineLabel(moments),
      },
      label("Requests sent each second", LEFT, 12),
      yAxis(yRate, ticks(most), count, width),
      bars(moments, rate, x, yRate, step),
      label("Lateness", LEFT, 194),
      yAxis(yLate, ticks(late), duration, width),
      svg("path", {
        class: "line p99",
        d: path(
          moments.map((m, i) => [at(i), m.late_p99_us]),
          yLate,
        ),
      }),
      svg("path", {
        class: "line p50",
        d: path(
          moments.map((m, i) => [at(i), m.late_p50_us]),
          yLate,
        ),
      }),
      timeAxis(x, moments.length * step, lower.bottom, width),
    );
    const read = (index) => [
      `+${digits((index * step) / 1e6)} s`,
      ["Sent", `${digits(rate[index])}/s`, "sent"],
      ["Different", count(moments[index].mismatches), "mismatch"],
      ["Late p50", duration(moments[index].late_p50_us), "p50"],
      ["Late p99", duration(moments[index].late_p99_us), "p99"],
    ];
    return readable(
      picture,
      moments.map((_, i) => at(i)),
      [upper.top, lower.bottom],
      read,
      width,
    );
  });
}

function timelineLabel(moments) {
  const sent = moments.reduce((sum, m) => sum + m.sent, 0);
  const wrong = moments.reduce((sum, m) => sum + m.mismatches, 0);
  return `Rate and lateness over the run: ${count(sent)} requests sent, ${count(wrong)} different. Arrow keys read values.`;
}

function bars(moments, rate, x, y, step) {
  const group = svg("g");
  const floor = y(0);
  moments.forEach((m, index) => {
    const left = x(index * step);
    const room = x((index + 1) * step) - left;
    const wide = room > 4 ? room - 1 : Math.max(1, room);
    if (m.sent)
      group.append(
        svg("rect", { class: "sent", x: left, width: wide, y: y(rate[index]), height: floor - y(rate[index]) }),
      );
    if (!m.mismatches) return;
    // Three pixels at least: one difference among thousands is what one looks for.
    const height = Math.max(3, m.sent ? ((floor - y(rate[index])) * Math.min(m.mismatches, m.sent)) / m.sent : 0);
    group.append(svg("rect", { class: "mismatch", x: left, width: Math.max(2, wide), y: floor - height, height }));
  });
  return group;
}

// Durations by percentile. The scale opens up towards the slow end: each nine has the same width.
function latencyChart(source, target) {
  return responsive(LATENCY_HEIGHT, (width) => {
    const bottom = LATENCY_HEIGHT - 28;
    const top = 12;
    const values = [...source, ...target].map(([, us]) => Math.max(1, us));
    const [low, high] = logSpan(values);
    const y = (us) => scale(Math.log10(low), Math.log10(high), bottom, top)(Math.log10(Math.max(low, us)));
    const last = Math.max(2, Math.min(4, ...[source, target].filter((c) => c.length).map(lastNines)));
    const x = scale(0, last + 0.35, LEFT, width - RIGHT - 10);
    const across = (share) => x(share >= 1 ? last + 0.35 : Math.min(last, nines(share)));
    const shares = [0, 0.5, 0.9, 0.99, 0.999, 0.9999].filter((share) => nines(share) <= last + 1e-9);
    const line = (curve) =>
      path(
        curve.map(([share, us]) => [across(share), us]),
        y,
      );
    const picture = svg(
      "svg",
      {
        viewBox: `0 0 ${width} ${LATENCY_HEIGHT}`,
        width,
        height: LATENCY_HEIGHT,
        role: "img",
        tabindex: 0,
        "aria-label": latencyLabel(source, target),
      },
      yAxis(y, logTicks(low, high), duration, width),
      [...shares, 1].map((share) =>
        svg("line", { class: "grid", x1: across(share), x2: across(share), y1: top, y2: bottom }),
      ),
      apart([...shares, 1], across, 38).map((share) =>
        svg("text", { class: "tick", x: across(share), y: bottom + 17, "text-anchor": "middle" }, percentile(share)),
      ),
      svg("path", { class: "line source", d: line(source) }),
      svg("path", { class: "line target", d: line(target) }),
    );
    const stops = readingShares(last);
    const read = (index) => {
      const was = source.length ? atShare(source, stops[index]) : null;
      const is = target.length ? atShare(target, stops[index]) : null;
      return [
        percentile(stops[index]),
        ["Source", duration(was), "source"],
        ["Target", duration(is), "target"],
        ["Target / source", factor(was && is ? is / was : null), ""],
      ];
    };
    return readable(picture, stops.map(across), [top, bottom], read, width);
  });
}

function latencyLabel(source, target) {
  const median = (curve) => duration(atShare(curve, 0.5));
  return `Latency by percentile: median of the source ${median(source)}, of the target ${median(target)}. Arrow keys read values.`;
}

function nines(share) {
  return share >= 1 ? Infinity : -Math.log10(1 - share);
}

function lastNines(curve) {
  return Math.max(2, ...curve.filter(([share]) => share < 1).map(([share]) => Math.floor(nines(share) + 1e-9)));
}

function readingShares(last) {
  const stops = [];
  for (let step = 0; step <= last * 20; step += 1) stops.push(1 - 10 ** (-step / 20));
  return [...stops, 1];
}

function percentileTable(source, target) {
  const shares = [0.5, 0.9, 0.99, 1];
  const rows = shares.map((share) => {
    const was = source.length ? atShare(source, share) : null;
    const is = target.length ? atShare(target, share) : null;
    const cells = [duration(was), duration(is), factor(was && is ? is / was : null)];
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, percentile(share)),
      cells.map((cell) => el("td", { class: "num" }, cell)),
    );
  });
  return el(
    "table",
    { class: "percentiles" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", {}),
        keyed("Source", "source"),
        keyed("Target", "target"),
        el("th", { scope: "col", class: "num" }, "Factor"),
      ),
    ),
    el("tbody", {}, rows),
  );
}

function keyed(name, kind) {
  return el("th", { scope: "col", class: "num" }, el("span", { class: `key ${kind}` }), name);
}

function legend(...entries) {
  return el(
    "p",
    { class: "legend" },
    entries.map(([name, kind]) => el("span", {}, el("i", { class: `key ${kind}` }), name)),
  );
}
