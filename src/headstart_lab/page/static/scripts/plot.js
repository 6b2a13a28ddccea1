// Line plots in SVG, drawn to the size of their host and again when that changes.

import { shape } from "./dom.js";

const MARGIN = { top: 14, right: 62, bottom: 40, left: 46 };
let plots = 0;

export class Plot {
  constructor(host) {
    this.host = host;
    this.clip = `plot-clip-${(plots += 1)}`;
    this.spec = null;
    new ResizeObserver(() => this.#draw()).observe(host);
  }

  /**
   * spec: title (for screen readers); x and y: { label, from, to, log, ticks: [[value, text]] };
   * lines: [{ x, y, class, label, rank }], of equal ends the higher rank above; marks: [{ x, y, class, label }]; guide: an x to point at.
   */
  show(spec) {
    this.spec = spec;
    this.#draw();
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.host;
    if (!this.spec || !width) return;
    const { x, y, title, lines, marks = [], guide } = this.spec;
    const right = width - MARGIN.right;
    const bottom = height - MARGIN.bottom;
    const atX = scale(x, MARGIN.left, right);
    const atY = scale(y, bottom, MARGIN.top);
    const parts = [
      shape("title", {}, title),
      shape("clipPath", { id: this.clip }, shape("rect", { x: MARGIN.left, y: MARGIN.top - 2, width: right - MARGIN.left, height: bottom - MARGIN.top + 4 })),
      ...y.ticks.flatMap(([value, text]) => [
        shape("line", { class: "grid", x1: MARGIN.left, x2: right, y1: atY(value), y2: atY(value) }),
        shape("text", { x: MARGIN.left - 8, y: atY(value) + 4, "text-anchor": "end" }, text),
      ]),
      ...x.ticks.map(([value, text]) => shape("text", { x: atX(value), y: bottom + 17, "text-anchor": "middle" }, text)),
      shape("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }),
      shape("text", { x: (MARGIN.left + right) / 2, y: height - 4, "text-anchor": "middle" }, x.label),
    ];
    if (guide !== undefined) {
      parts.push(shape("line", { class: "guide", x1: atX(guide), x2: atX(guide), y1: MARGIN.top, y2: bottom }));
    }
    const curves = lines.map((line) => shape("path", { class: line.class, d: pathOf(line, atX, atY) }));
    parts.push(shape("g", { "clip-path": `url(#${this.clip})` }, ...curves), ...labels(lines, y, atY, right, bottom));
    for (const mark of marks) {
      const [cx, cy] = [atX(mark.x), Math.min(Math.max(atY(mark.y), MARGIN.top), bottom)];
      parts.push(shape("circle", { class: mark.class, cx, cy, r: 6 }));
      if (mark.label) {
        const [anchor, shift] = cx > width / 2 ? ["end", -11] : ["start", 11];
        parts.push(shape("text", { class: "mark", x: cx + shift, y: cy - 8, "text-anchor": anchor }, mark.label));
      }
    }
    this.host.replaceChildren(shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, ...parts));
  }
}

/** Labels at the right ends of lines, pushed apart where they would touch. */
function labels(lines, axis, atY, right, bottom) {
  const ends = lines
    .filter((line) => line.label)
    .map((line) => ({ line, y: atY(Math.min(Math.max(line.y.at(-1), axis.from), axis.to)) }))
    .sort((a, b) => b.y - a.y || a.line.rank - b.line.rank);
  let free = bottom;
  for (const end of ends) {
    end.y = Math.min(end.y, free);
    free = end.y - 14;
  }
  const over = Math.max(0, MARGIN.top - (ends.at(-1)?.y ?? bottom));
  return ends.map(({ line, y }, place) => {
    // Too many at the top: the higher ones are let down together.
    const shifted = over ? Math.max(y, MARGIN.top + 14 * (ends.length - 1 - place)) : y;
    return shape("text", { class: line.class, x: right + 7, y: shifted + 4 }, line.label);
  });
}

function pathOf({ x, y }, atX, atY) {
  return y.map((value, place) => `${place ? "L" : "M"}${atX(x[place]).toFixed(1)} ${atY(value).toFixed(1)}`).join("");
}

function scale({ from, to, log }, start, end) {
  const map = log ? (value) => Math.log(Math.max(value, from / 4)) : (value) => value;
  const [low, high] = [map(from), map(to)];
  return (value) => start + ((map(value) - low) / (high - low)) * (end - start);
}
