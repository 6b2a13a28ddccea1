// Where a round's tree goes in a given width: levels from left to right, in several bands where one is too wide.

import { columns } from "./characters.js";
import { shortened } from "./format.js";

export const BODY = 29;
const LETTER = 7.6;
const ROW = 37;
const DENSE_ROW = 34;
const DENSE = 7;
const GAP = 24;
const BAND_GAP = 18;
const MARGIN = 6;
const GUTTER = 16;
const PADDING = 18;
const NARROWEST = 34;
const LETTERS = [14, 11, 9];

/** The nodes of a round with their state, the root first and the model's own token last; then x, y and width of each. */
export function layout(round, room) {
  const nodes = states(round);
  const levels = Math.max(...nodes.map((node) => node.depth)) + 1;
  const letters = LETTERS.find((most) => sized(nodes, most, levels).total <= room);
  const fitting = Math.floor((room - GUTTER - 3 * MARGIN - PADDING) / LETTER);
  const { widths } = sized(nodes, letters ?? Math.max(3, Math.min(LETTERS[0], fitting)), levels);
  const lefts = bandsOf(widths, room);
  const rows = rowsOf(nodes[0]);
  const tall = rows > DENSE ? DENSE_ROW : ROW;
  let top = MARGIN;
  for (let band = 0; band <= lefts.at(-1).band; band += 1) {
    const members = nodes.filter((node) => lefts[node.depth].band === band);
    const used = [...new Set(members.map((node) => node.row))].sort((a, b) => a - b);
    for (const node of members) {
      node.band = band;
      node.x = lefts[node.depth].x;
      node.y = top + used.indexOf(node.row) * tall;
      node.bandTop = top;
    }
    top += used.length * tall + BAND_GAP;
  }
  const width = Math.max(...nodes.map((node) => node.x + node.width)) + 2 * MARGIN;
  return { nodes, width, height: Math.max(...nodes.map((node) => node.y)) + BODY + MARGIN };
}

export const onTheWay = (node) => node.state === "accepted" || node.own === true;

/** The line from a node's parent to it. */
export function connection(node, right) {
  const [x1, y1] = [node.up.x + node.up.width, node.up.y + BODY / 2];
  const [x2, y2] = [node.x, node.y + BODY / 2];
  if (node.band === node.up.band) {
    const middle = x2 - GAP / 2;
    return `M${x1} ${y1} H${middle - 8} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
  }
  // Around the end of the line, as text goes on in the next one.
  const [edge, between] = [right - MARGIN / 2, node.bandTop - BAND_GAP / 2];
  return `M${x1} ${y1} H${edge} V${between} H${MARGIN + 2} V${y2} H${x2}`;
}

function states(round) {
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
  return nodes;
}

/** Sets each node's text and width; [level] the widest, and all of them side by side. */
function sized(nodes, letters, levels) {
  const widths = new Array(levels).fill(NARROWEST);
  for (const node of nodes) {
    node.short = shortened(node.label, letters);
    node.width = Math.max(NARROWEST, columns(node.short) * LETTER + PADDING);
    widths[node.depth] = Math.max(widths[node.depth], node.width);
  }
  return { widths, total: widths.reduce((sum, width) => sum + width + GAP, 3 * MARGIN - GAP) };
}

/** [level] its band and its left edge. */
function bandsOf(widths, room) {
  const lefts = [];
  let [band, x] = [0, MARGIN];
  for (const width of widths) {
    if (lefts.length && x + width + 2 * MARGIN > room) {
      band += 1;
      x = MARGIN + GUTTER;
    }
    lefts.push({ band, x });
    x += width + GAP;
  }
  return lefts;
}

/**
 * Sets each node's row, as high as there is room on its levels: a parent is level with its first child, and what was kept
 * runs straight on. Gives the number of rows.
 */
function rowsOf(root) {
  const free = [];
  (function descend(node, lowest) {
    const line = [];
    for (let next = node; next; next = ordered(next)[0]) line.push(next);
    const row = Math.max(lowest, ...line.map((each) => free[each.depth] ?? 0));
    for (const each of line) {
      each.row = row;
      free[each.depth] = row + 1;
    }
    for (const each of line.toReversed()) ordered(each).slice(1).forEach((child) => descend(child, row + 1));
  })(root, 0);
  return Math.max(...free);
}

const ordered = (node) => [...node.children].sort((a, b) => onTheWay(b) - onTheWay(a));
