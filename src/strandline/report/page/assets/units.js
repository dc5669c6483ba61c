// Numbers for people.

const MISSING = "–";

function count(number) {
  return number.toLocaleString("en");
}

function duration(us) {
  if (us === null || us === undefined) return MISSING;
  const size = Math.abs(us);
  if (size < 1_000) return `${digits(us)} µs`;
  if (size < 1_000_000) return `${digits(us / 1_000)} ms`;
  if (size < 120_000_000) return `${digits(us / 1_000_000)} s`;
  return `${count(Math.round(us / 60_000_000))} min`;
}

function digits(number) {
  const size = Math.abs(number);
  return String(Number(number.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2)));
}

// Never 100% for less than all, nor 0% for more than nothing.
function percent(part, whole) {
  if (!part || !whole) return "0%";
  if (part === whole) return "100%";
  const share = ((100 * part) / whole).toFixed(1);
  if (share === "0.0") return "<0.1%";
  return share === "100.0" ? ">99.9%" : `${share}%`;
}

function factor(times) {
  return times === null || times === undefined ? MISSING : `${times.toFixed(times < 10 ? 2 : 1)}×`;
}

function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

function moment(us) {
  const date = new Date(us / 1_000);
  return Number.isNaN(date.getTime()) ? MISSING : `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

function percentile(share) {
  return share >= 1 ? "max" : `p${Number((100 * share).toFixed(share < 0.99 ? 0 : 2))}`;
}

// The least duration that at least this share of the exchanges kept within.
function atShare(curve, share) {
  const point = curve.find(([reached]) => reached >= share - 1e-9) ?? curve.at(-1);
  return point ? point[1] : null;
}
