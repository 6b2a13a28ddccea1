// Making and finding elements.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An HTML element. Attributes that are undefined or false are left out; children are nodes or text. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An SVG element. */
export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** Entries of a description list; each is [term, value] or [term, value, class]. */
export function entries(pairs) {
  return pairs.map(([term, value, kind]) =>
    element("div", { class: kind }, element("dt", {}, term), element("dd", {}, value)),
  );
}

export const calm = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}
