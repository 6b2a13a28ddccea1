// A round's tree, drawn from left to right: the root, the guesses, and the token that the model added.

import { shape } from "./dom.js";
import { percent, shortened } from "./format.js";
import { reach, rove } from "./roving.js";

const LETTER = 7.6;
const ROW = 40;
const BODY = 31;
const GAP = 26;
const MARGIN = 6;

/** The nodes of a round with their state and place; the root first, the model's own token last. */
export function layout(round) {
  // An answer may end inside of the path; what follows its end was not said.
  const said = round.path.slice(0, round.tokens.filter((token) => token.origin === "accepted").length);
  const kept = new Set(said);
  const own = round.tokens.find((token) => token.origin !== "accepted");
  const end = own ? undefined : said.at(-1);
  const root = { label: round.root, state: "root", depth: 0, children: [] };
  const guesses = round.nodes.map((node) => ({ ...node, children: [] }));
  guesses.forEach((node, place) => {
    const parent = guesses[node.parent] ?? root;
    node.up = parent;
    node.depth = parent.depth + 1;
    const looked = (parent === root || parent.state === "accepted") && node.parent !== end;
    node.state = kept.has(place) ? "accepted" : looked ? "rejected" : "unreached";
    parent.children.push(node);
  });
  const nodes = [root, ...guesses];
  if (own) {
    const parent = guesses[said.at(-1)] ?? root;
    const answer = { ...round.answer, up: parent, depth: parent.depth + 1, state: own.origin, own: true, children: [] };
    parent.children.push(answer);
    nodes.push(answer);
  }
  place(root, nodes);
  return nodes;
}

export class Tree {
  /** `read` is called with the node under pointer or focus. */
  constructor(host, read) {
    this.host = host;
    this.read = read;
    this.nodes = new Map();
    rove(host, ".node", (item, key) => this.#towards(this.nodes.get(item), key));
    for (const kind of ["focusin", "pointerover", "click"]) {
      host.addEventListener(kind, (event) => {
        const node = this.nodes.get(event.target.closest(".node"));
        if (node) this.read(node);
      });
    }
  }

  show(round) {
    const nodes = layout(round);
    const width = Math.max(...nodes.map((node) => node.x + node.width)) + MARGIN;
    const height = Math.max(...nodes.map((node) => node.y)) + BODY + MARGIN;
    const edges = nodes.filter((node) => node.up).map(edge);
    const drawn = nodes.map((node) => body(node));
    this.nodes = new Map(nodes.map((node, place) => [drawn[place], node]));
    nodes.forEach((node, place) => (node.drawn = drawn[place]));
    this.host.replaceChildren(shape("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, ...edges, ...drawn));
    const first = nodes.findLast(onTheWay);
    reach(this.host, first.drawn);
    this.read(first);
  }

  #towards(node, key) {
    if (key === "ArrowLeft") return node.up?.drawn;
    if (key === "ArrowRight") return (node.children.find(onTheWay) ?? node.children[0])?.drawn;
    if (key !== "ArrowUp" && key !== "ArrowDown") return undefined;
    const level = [...this.nodes.values()].filter((other) => other.depth === node.depth).sort((a, b) => a.y - b.y);
    return level[level.indexOf(node) + (key === "ArrowUp" ? -1 : 1)]?.drawn;
  }
}

const onTheWay = (node) => node.state === "accepted" || node.own === true;

/** x by depth, as wide as each level's longest token; y by leaves, a parent level with its first child. */
function place(root, nodes) {
  const widths = [];
  for (const node of nodes) {
    node.short = shortened(node.label);
    node.width = Math.max(34, [...node.short].length * LETTER + 18);
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.width);
  }
  const lefts = widths.map((_, depth) => MARGIN + widths.slice(0, depth).reduce((sum, width) => sum + width + GAP, 0));
  let row = 0;
  (function descend(node) {
    node.x = lefts[node.depth];
    node.y = MARGIN + row * ROW;
    // What was kept runs straight on; the rest hangs below it.
    const ordered = [...node.children].sort((a, b) => onTheWay(b) - onTheWay(a));
    ordered.forEach((child, place) => {
      if (place > 0) row += 1;
      descend(child);
    });
  })(root);
}

function edge(node) {
  const [x1, y1, x2, y2] = [node.up.x + node.up.width, node.up.y + BODY / 2, node.x, node.y + BODY / 2];
  const middle = x2 - GAP / 2;
  const kind = node.own ? `own ${node.state}` : node.state === "accepted" ? "kept" : "";
  return shape("path", { class: `edge ${kind}`, d: `M${x1} ${y1} H${middle - 8} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
}

function body(node) {
  const room = node.width - 16;
  const parts = [
    shape("rect", { class: "body", x: 0, y: 0, width: node.width, height: BODY, rx: 8 }),
    shape("text", { x: node.width / 2, y: node.state === "root" ? 20 : 16, "text-anchor": "middle" }, node.short),
  ];
  if (node.target !== undefined) {
    parts.push(shape("rect", { class: "room", x: 8, y: 22, width: room, height: 3 }));
    parts.push(shape("rect", { class: "p", x: 8, y: 22, width: room * node.target, height: 3 }));
    if (typeof node.draft === "number") parts.push(shape("rect", { class: "q", x: 8, y: 26.5, width: room * node.draft, height: 2 }));
  }
  return shape(
    "g",
    {
      class: `node ${node.state}`,
      transform: `translate(${node.x} ${node.y})`,
      tabindex: "-1",
      role: "img",
      "aria-label": described(node),
    },
    ...parts,
  );
}

function described(node) {
  if (node.state === "root") return `“${node.label}”, the token before`;
  const draft = typeof node.draft === "number" ? `, draft ${percent(node.draft)}` : "";
  return `“${node.label}”, ${node.state}, model ${percent(node.target)}${draft}`;
}
