// A round's tree, and how it looks while it is drafted, verified and accepted.

import { shape } from "./dom.js";
import { percent } from "./format.js";
import { reach, rove } from "./roving.js";
import { BODY, connection, layout, onTheWay } from "./tree_layout.js";

const SWEEP = 46;
/** Which part of the step "accept" the walk along the path takes; the tokens become text behind it. */
export const WALK = 0.72;

export class Tree {
  /** `read` is called with the node under pointer or focus. */
  constructor(host, read) {
    this.host = host;
    this.read = read;
    this.nodes = new Map();
    this.round = null;
    rove(host, ".node", (item, key) => this.#towards(this.nodes.get(item), key));
    for (const kind of ["focusin", "pointerover", "click"]) {
      host.addEventListener(kind, (event) => {
        const node = this.nodes.get(event.target.closest(".node"));
        if (node && !node.drawn.classList.contains("coming")) this.read(node);
      });
    }
  }

  /** Draw a round, as it looks when it is over. */
  show(round) {
    this.round = round;
    const { nodes, width, height } = layout(round, this.host.clientWidth);
    const edges = nodes.map((node) => node.up && shape("path", { d: connection(node, width) }));
    const drawn = nodes.map((node) => body(node));
    this.sweep = shape(
      "g",
      { class: "sweep", "aria-hidden": "true" },
      shape("rect", { x: -SWEEP, y: 0, width: SWEEP, height }),
      shape("line", { x1: 0, x2: 0, y1: 0, y2: height }),
    );
    this.width = width;
    this.nodes = new Map(nodes.map((node, place) => [drawn[place], node]));
    nodes.forEach((node, place) => {
      node.drawn = drawn[place];
      node.edge = edges[place];
      node.look = node.edgeLook = "";
    });
    // Lines of what was kept lie over the others.
    const ordered = nodes.filter((node) => node.up).sort((a, b) => onTheWay(a) - onTheWay(b));
    const size = { width, height, viewBox: `0 0 ${width} ${height}` };
    this.first = nodes.findLast(onTheWay);
    this.told = null;
    // In its colours before it is in the page: a node without a look is black, and would fade from there.
    this.pose("accept", 1);
    this.host.replaceChildren(shape("svg", size, ...ordered.map((node) => node.edge), this.sweep, ...drawn));
    this.host.scrollTop = 0;
    reach(this.host, this.first.drawn);
  }

  /** The height that a round's tree takes here. */
  heightOf(round) {
    return layout(round, this.host.clientWidth).height;
  }

  /** How the tree looks within a step, `progress` in [0, 1]. */
  pose(step, progress) {
    const guesses = this.round.nodes.length;
    const all = [...this.nodes.values()];
    const last = Math.max(...all.filter(onTheWay).map((node) => node.depth));
    const swept = step === "verify" ? progress * (this.width + SWEEP) : step === "accept" ? Infinity : -1;
    const walked = step === "accept" ? (progress / WALK) * (last + 0.01) : -1;
    all.forEach((node, place) => {
      const drafted = step !== "draft" || place - 1 < Math.ceil(progress * guesses - 1e-9);
      node.look = look(node, drafted, swept, walked, last);
      paint(node);
    });
    this.#tell(walked >= last ? this.first : all[0]);
    this.sweep.classList.toggle("on", step === "verify" && progress > 0 && progress < 1);
    this.sweep.setAttribute("transform", `translate(${swept === Infinity ? 0 : Math.max(0, swept)} 0)`);
  }

  /** The nodes that became text, in order. */
  get said() {
    return [...this.nodes.values()].filter(onTheWay).sort((a, b) => a.depth - b.depth);
  }

  /** Read out what the round comes to when it is over, unless somebody looks at another node. */
  #tell(node) {
    if (node === this.told || this.host.contains(document.activeElement)) return;
    this.told = node;
    this.read(node);
  }

  #towards(node, key) {
    if (key === "ArrowLeft") return node.up?.drawn;
    if (key === "ArrowRight") return (node.children.find(onTheWay) ?? node.children[0])?.drawn;
    if (key !== "ArrowUp" && key !== "ArrowDown") return undefined;
    const level = [...this.nodes.values()].filter((other) => other.depth === node.depth).sort((a, b) => a.y - b.y);
    return level[level.indexOf(node) + (key === "ArrowUp" ? -1 : 1)]?.drawn;
  }
}

/** What a node looks like: the root, not there yet, a guess, a guess that the pass has seen, or what became of it. */
function look(node, drafted, swept, walked, last) {
  if (node.state === "root") return "root";
  if (node.own) return walked >= node.depth ? node.state : "coming";
  if (!drafted) return "coming";
  // Guesses that were never looked at are known as such when the walk is over.
  if (walked >= (node.state === "unreached" ? last : Math.min(node.depth, last))) return node.state;
  return swept >= node.x + node.width / 2 ? "checked" : "guess";
}

function paint(node) {
  if (node.drawn.dataset.look === node.look) return;
  node.drawn.dataset.look = node.look;
  node.drawn.setAttribute("class", `node ${node.look}`);
  if (!node.edge) return;
  const kind = node.own ? `own ${node.look}` : node.look === "accepted" ? "kept" : node.look;
  node.edge.setAttribute("class", `edge ${kind}`);
}

function body(node) {
  const room = node.width - 16;
  const parts = [
    shape("rect", { class: "body", x: 0, y: 0, width: node.width, height: BODY, rx: 8 }),
    shape("text", { x: node.width / 2, y: node.state === "root" ? 19 : 15, "text-anchor": "middle" }, node.short),
  ];
  if (node.target !== undefined) {
    parts.push(shape("rect", { class: "room", x: 8, y: 20.5, width: room, height: 3 }));
    parts.push(shape("rect", { class: "p", x: 8, y: 20.5, width: room * node.target, height: 3 }));
    if (typeof node.draft === "number") parts.push(shape("rect", { class: "q", x: 8, y: 25, width: room * node.draft, height: 2 }));
  }
  return shape(
    "g",
    { transform: `translate(${node.x} ${node.y})`, tabindex: "-1", role: "img", "aria-label": described(node) },
    shape("g", { class: "pop" }, ...parts),
  );
}

function described(node) {
  if (node.state === "root") return `“${node.label}”, the token before`;
  const draft = typeof node.draft === "number" ? `, draft ${percent(node.draft)}` : "";
  return `“${node.label}”, ${node.state}, model ${percent(node.target)}${draft}`;
}
