// Passes in time: a strip for each answer, every round as long as it took and striped by the tokens it brought.

import { shape } from "./dom.js";

const ROW = 22;
const LABEL = 84;
const SECONDS = 52;

/** Draws into `host`; an answer's time starts when its first round does, after the prompt has been read. */
export function showTimeline(host, run, plain) {
  const rows = [
    ["speculating", run],
    ["plain", plain],
  ].filter(([, answer]) => answer && answer.rounds.length);
  const longest = Math.max(0, ...rows.map(([, answer]) => answer.seconds));
  const width = host.clientWidth;
  if (!longest || !width) return;
  const perSecond = (width - LABEL - SECONDS) / longest;
  const drawn = rows.flatMap(([name, answer], row) => strip(name, answer, row * (ROW + 8), perSecond));
  const title = rows.map(([name, answer]) => `${name}: ${answer.rounds.length} passes, ${answer.seconds.toFixed(2)} s`).join("; ");
  const height = rows.length * (ROW + 8);
  host.replaceChildren(shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": title }, ...drawn));
}

function strip(name, answer, top, perSecond) {
  const parts = [shape("text", { x: LABEL - 8, y: top + 15, "text-anchor": "end" }, name)];
  answer.rounds.forEach((round, place) => {
    const start = place ? answer.endOf(place - 1) : 0;
    const width = (answer.endOf(place) - start) * perSecond;
    const height = ROW / round.tokens.length;
    round.tokens.forEach((token, above) => {
      const y = top + ROW - (above + 1) * height;
      parts.push(shape("rect", { class: `stripe ${token.origin}`, x: LABEL + start * perSecond, y, width: Math.max(0.5, width - 0.75), height: Math.max(0.5, height - 0.75) }));
    });
  });
  parts.push(shape("text", { x: LABEL + answer.seconds * perSecond + 6, y: top + 15 }, `${answer.seconds.toFixed(answer.seconds < 1 ? 2 : 1)} s`));
  return parts;
}
