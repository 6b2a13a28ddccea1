// Passes in time: a strip for each answer, every pass as long as it took and striped by the tokens it brought.

import { shape } from "./dom.js";

const ROW = 22;
const LABEL = 84;
const SECONDS = 52;

/** Draws into `host`; an answer's time starts when its first pass, which waited for the prompt, is over. */
export function showTimeline(host, run, plain) {
  const rows = [
    ["speculating", run],
    ["plain", plain],
  ].filter(([, answer]) => answer && answer.rounds.length > 1);
  const longest = Math.max(0, ...rows.map(([, answer]) => elapsed(answer)));
  const width = host.clientWidth;
  if (!longest || !width) return;
  const perSecond = (width - LABEL - SECONDS) / longest;
  const drawn = rows.flatMap(([name, answer], row) => strip(name, answer, row * (ROW + 8), perSecond));
  const title = rows.map(([name, answer]) => `${name}: ${answer.rounds.length} passes, ${elapsed(answer).toFixed(2)} s`).join("; ");
  const height = rows.length * (ROW + 8);
  host.replaceChildren(shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": title }, ...drawn));
}

const elapsed = (answer) => answer.rounds.at(-1).seconds - answer.rounds[0].seconds;

function strip(name, answer, top, perSecond) {
  const start = answer.rounds[0].seconds;
  const parts = [shape("text", { x: LABEL - 8, y: top + 15, "text-anchor": "end" }, name)];
  for (let i = 1; i < answer.rounds.length; i += 1) {
    const round = answer.rounds[i];
    const left = LABEL + (answer.rounds[i - 1].seconds - start) * perSecond;
    const width = (round.seconds - answer.rounds[i - 1].seconds) * perSecond;
    const height = ROW / round.tokens.length;
    round.tokens.forEach((token, place) => {
      const y = top + ROW - (place + 1) * height;
      parts.push(shape("rect", { class: `stripe ${token.origin}`, x: left, y, width: Math.max(0.5, width - 0.75), height: Math.max(0.5, height - 0.75) }));
    });
  }
  const end = LABEL + elapsed(answer) * perSecond;
  parts.push(shape("text", { x: end + 6, y: top + 15 }, `${elapsed(answer).toFixed(1)} s`));
  return parts;
}
