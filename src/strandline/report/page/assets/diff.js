// Two answers laid side by side: pure functions from texts to rows. A line has its text; a tail, which is a comma that
// only punctuates and is not compared; the path of its place, as differences name it; and an anchor by which a changed
// line finds its fellow.

const DEEPEST = 200;
const MOST_PAIRS = 4_000_000;
const CUT = "\n✂ ";

function headAndBody(text) {
  const blank = text.indexOf("\n\n");
  return blank < 0 ? [text, ""] : [text.slice(0, blank), text.slice(blank + 2)];
}

function headRows(source, target) {
  const left = headLines(source);
  const right = inOrderOf(left, headLines(target), (line) => line.path);
  return rowsOf(left, right);
}

function headLines(head) {
  return head
    ? head.split("\n").map((text, index) => {
        const name = index ? headerName(text) : "";
        return { text, tail: "", path: name, anchor: name };
      })
    : [];
}

function headerName(text) {
  return text
    .slice(0, Math.max(0, text.indexOf(":")))
    .trim()
    .toLowerCase();
}

function bodyRows(source, target) {
  const [left, leftCut] = withoutCut(source);
  const [right, rightCut] = withoutCut(target);
  const was = documentsOf(left, leftCut !== "");
  const is = documentsOf(right, rightCut !== "");
  const leftLines = was ? documentLines(was) : textLines(left);
  const rightLines = is
    ? documentLines(is.map((each, index) => likeSource(was?.[index] ?? {}, each)))
    : fieldsLike(leftLines, textLines(right));
  return rowsOf([...leftLines, ...textLines(leftCut)], [...rightLines, ...textLines(rightCut)]);
}

// A body as its lines, for a message that is compared with none.
function prettyBody(body) {
  return bodyRows(body, "")
    .map((row) => row.left.text + row.left.tail)
    .join("\n");
}

function withoutCut(body) {
  const at = body.lastIndexOf(CUT);
  return at < 0 ? [body, ""] : [body.slice(0, at), body.slice(at + 1)];
}

function textLines(text) {
  if (!text) return [];
  if (/^[^\s=&]+=[^\s&]*(&[^\s=&]+=[^\s&]*)+$/.test(text)) return formLines(text);
  return text.split("\n").map((line, index) => ({ text: line, tail: "", path: `line ${index + 1}`, anchor: null }));
}

// The order of a form's fields means as little; lines of text have no anchor and stay.
function fieldsLike(source, target) {
  return inOrderOf(source, target, (line) => line.anchor);
}

function formLines(text) {
  const fields = text.split("&");
  return fields.map((field, index) => {
    const path = memberPath("$", field.split("=", 1)[0]);
    return { text: field, tail: index < fields.length - 1 ? "&" : "", path, anchor: path };
  });
}

// One JSON document, or one on each line; null for what is neither.
function documentsOf(text, cut) {
  const whole = parseJson(text, cut);
  if (whole) return [whole];
  const lines = text.split("\n").filter((line) => line.trim());
  const documents = lines.length > 1 ? lines.map((line) => parseJson(line, false)) : [null];
  return documents.includes(null) ? null : documents;
}

function documentLines(documents) {
  return documents.flatMap((each) => jsonLines(each, documents.length > 1 ? "$[*]" : "$"));
}

// A tree that keeps every number and string as it was written, or null for what is no JSON. A text that was cut is read
// as far as it goes.
function parseJson(text, cut) {
  if (!/^\s*[[{]/.test(text) || !(cut || isJson(text))) return null;
  const tokens = text.match(/[{}[\]:,]|"(?:[^"\\]|\\.)*(?:"|$)|[^\s{}[\]:,"]+/g) ?? [];
  let next = 0;
  const value = (depth) => {
    if (depth > DEEPEST) throw new RangeError("too deep");
    const token = tokens[next++] ?? "";
    if (token === "{") return { entries: members(depth) };
    if (token === "[") return { items: elements(depth) };
    return { raw: token };
  };
  const members = (depth) => {
    const entries = [];
    while (next < tokens.length && tokens[next] !== "}") {
      const key = tokens[next++];
      if (tokens[next] === ":") next += 1;
      entries.push([key, value(depth + 1)]);
      if (tokens[next] === ",") next += 1;
    }
    next += 1;
    return entries;
  };
  const elements = (depth) => {
    const items = [];
    while (next < tokens.length && tokens[next] !== "]") {
      items.push(value(depth + 1));
      if (tokens[next] === ",") next += 1;
    }
    next += 1;
    return items;
  };
  try {
    return value(0);
  } catch {
    return null;
  }
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function jsonLines(node, path, key = "", depth = 0, tail = "", lines = []) {
  const indent = "  ".repeat(depth) + (key && `${key}: `);
  const children = node.entries ?? node.items;
  const [open, close] = node.entries ? "{}" : "[]";
  if (!children) lines.push({ text: indent + node.raw, tail, path, anchor: path });
  else if (!children.length) lines.push({ text: indent + open + close, tail, path, anchor: path });
  else {
    lines.push({ text: indent + open, tail: "", path, anchor: path });
    children.forEach((child, index) => {
      const comma = index < children.length - 1 ? "," : "";
      if (node.entries) jsonLines(child[1], memberPath(path, unquoted(child[0])), child[0], depth + 1, comma, lines);
      else jsonLines(child, `${path}[*]`, "", depth + 1, comma, lines);
    });
    lines.push({ text: "  ".repeat(depth) + close, tail, path, anchor: `${path} end` });
  }
  return lines;
}

function unquoted(key) {
  try {
    return JSON.parse(key);
  } catch {
    return key;
  }
}

function memberPath(path, name) {
  return /^[\w@-]+$/.test(name) ? `${path}.${name}` : `${path}[${JSON.stringify(name)}]`;
}

// Whether a path is one of these or lies within one.
function within(path, places) {
  return places.some(
    (place) => path === place || (place.startsWith("$") && isBody(path) && (place === "$" || isPartOf(path, place))),
  );
}

function isBody(path) {
  return /^(\$|line )/.test(path);
}

function isPartOf(path, place) {
  return path.startsWith(`${place}.`) || path.startsWith(`${place}[`);
}

// The target's tree with the members of objects in the source's order, which means nothing in JSON.
function likeSource(source, target) {
  if (source.items && target.items) {
    return { items: target.items.map((item, index) => likeSource(source.items[index] ?? {}, item)) };
  }
  if (!source.entries || !target.entries) return target;
  const known = new Map(source.entries);
  const entries = target.entries.map(([key, child]) => [key, likeSource(known.get(key) ?? {}, child)]);
  return { entries: inOrderOf(source.entries, entries, (entry) => entry[0]) };
}

// The list in the model's order; what the model does not know stays behind what it followed.
function inOrderOf(model, list, key) {
  const rank = new Map();
  model.forEach((item, index) => rank.has(key(item)) || rank.set(key(item), index));
  const groups = [{ rank: -1, items: [] }];
  for (const item of list) {
    if (rank.has(key(item))) groups.push({ rank: rank.get(key(item)), items: [item] });
    else groups.at(-1).items.push(item);
  }
  return groups.sort((a, b) => a.rank - b.rank).flatMap((group) => group.items);
}

function rowsOf(left, right) {
  const byText = (line) => line.text;
  const byAnchor = (line) => line.anchor ?? Symbol("none");
  return align(left, right, [byText, byAnchor]).map(([a, b]) => ({
    left: a,
    right: b,
    same: a !== null && b !== null && a.text === b.text,
  }));
}

// Pairs what is equal by the first key, and what lies between by the next; what is left is paired as it comes.
function align(left, right, keys) {
  const pairs = [];
  if (!keys.length) {
    for (let i = 0; i < Math.max(left.length, right.length); i += 1) pairs.push([left[i] ?? null, right[i] ?? null]);
    return pairs;
  }
  const [key, ...rest] = keys;
  let i = 0;
  let j = 0;
  for (const [a, b] of [...commonRun(left.map(key), right.map(key)), [left.length, right.length]]) {
    if (a > i || b > j) pairs.push(...align(left.slice(i, a), right.slice(j, b), rest));
    if (a < left.length) pairs.push([left[a], right[b]]);
    i = a + 1;
    j = b + 1;
  }
  return pairs;
}

// The places of a longest common subsequence; beyond a bound only of what both begin and end with.
function commonRun(a, b) {
  let start = 0;
  let end = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const middle = longest(a.slice(start, a.length - end), b.slice(start, b.length - end));
  return [
    ...Array.from({ length: start }, (_, i) => [i, i]),
    ...middle.map(([i, j]) => [i + start, j + start]),
    ...Array.from({ length: end }, (_, i) => [a.length - end + i, b.length - end + i]),
  ];
}

function longest(a, b) {
  if (!a.length || !b.length || a.length * b.length > MOST_PAIRS) return [];
  const wide = b.length + 1;
  const best = new Uint16Array((a.length + 1) * wide);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      best[i * wide + j] =
        a[i] === b[j] ? best[(i + 1) * wide + j + 1] + 1 : Math.max(best[(i + 1) * wide + j], best[i * wide + j + 1]);
    }
  }
  const pairs = [];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) pairs.push([i++, j++]);
    else if (best[(i + 1) * wide + j] >= best[i * wide + j + 1]) i += 1;
    else j += 1;
  }
  return pairs;
}

// Two lines as parts [text, changed] each. Lines with hardly a word in common are changed as a whole.
function changedParts(left, right) {
  const a = words(left);
  const b = words(right);
  const common = commonRun(a, b);
  const shared = common.reduce((sum, [i]) => sum + wordLength(a[i]), 0);
  const all = Math.max(...[a, b].map((list) => list.reduce((sum, word) => sum + wordLength(word), 0)));
  if (shared < all * 0.3) return [[[left, true]], [[right, true]]];
  return [marked(a, new Set(common.map(([i]) => i))), marked(b, new Set(common.map(([, j]) => j)))];
}

function words(text) {
  return text.match(/[\p{L}\p{N}_]+|\s+|[^]/gu) ?? [];
}

function wordLength(word) {
  return /[\p{L}\p{N}_]/u.test(word) ? word.length : 0;
}

function marked(list, kept) {
  const parts = [];
  list.forEach((word, index) => {
    const changed = !kept.has(index);
    if (parts.length && parts.at(-1)[1] === changed) parts.at(-1)[0] += word;
    else parts.push([word, changed]);
  });
  return parts;
}
