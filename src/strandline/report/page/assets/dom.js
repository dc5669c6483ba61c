// Building elements. Data enters the page as text and as attributes, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function put(id, ...children) {
  byId(id).replaceChildren(...children);
}

// Draws into a host now and whenever its width changes. Its height is kept free from the start, so that nothing jumps.
function responsive(height, draw) {
  const host = el("div", { class: "chart" });
  host.style.minHeight = `${height}px`;
  let drawn = 0;
  new ResizeObserver(() => {
    const width = Math.floor(host.clientWidth);
    if (!width || width === drawn) return;
    drawn = width;
    host.replaceChildren(draw(width));
  }).observe(host);
  return host;
}
