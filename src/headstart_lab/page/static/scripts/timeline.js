// Passes in time: for each answer the tokens that every round brought, and below them the calls of the models that it
// took, as in the paper's figure 5.

import { shape } from "./dom.js";
import { depthOf } from "./run.js";

const ROW = 22;
const CALLS = 14;
const STEP = 44;
const LABEL = 84;
const SECONDS = 52;

/** Draws into `host`; an answer's time starts with its encoder, or when its first round does, after the prompt has been read. */
export function showTimeline(host, run, plain) {
  const rows = [
    ["speculating", run],
    ["plain", plain],
  ].filter(([, answer]) => answer && answer.rounds.length);
  const longest = Math.max(0, ...rows.map(([, answer]) => answer.encoderSeconds + answer.seconds));
  const width = host.clientWidth;
  if (!longest || !width) return;
  const perSecond = (width - LABEL - SECONDS) / longest;
  const drawn = rows.flatMap(([name, answer], row) => strip(name, answer, row * STEP, perSecond));
  const told = rows.map(([name, answer]) => `${name}: ${answer.rounds.length} passes, ${answer.seconds.toFixed(2)} s`).join("; ");
  const height = rows.length * STEP;
  const label = `${told}. ${rows.map(([name, answer]) => calls(name, answer)).join("; ")}.`;
  host.replaceChildren(shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label }, ...drawn));
}

/** Where an answer's time went, in words. */
function calls(name, answer) {
  const sum = (part) => answer.rounds.reduce((seconds, _, place) => seconds + answer.parts(place)[part], 0);
  const encoder = answer.encoderSeconds ? `, encoder ${answer.encoderSeconds.toFixed(2)} s` : "";
  return `${name}: drafting ${sum(0).toFixed(2)} s, target passes ${sum(1).toFixed(2)} s${encoder}`;
}

function strip(name, answer, top, perSecond) {
  const parts = [shape("text", { x: LABEL - 8, y: top + 15, "text-anchor": "end" }, name)];
  const zero = LABEL + answer.encoderSeconds * perSecond;
  if (answer.encoderSeconds) parts.push(block("encoder", LABEL, zero - LABEL, top, CALLS));
  answer.rounds.forEach((round, place) => {
    const start = place ? answer.endOf(place - 1) : 0;
    const width = (answer.endOf(place) - start) * perSecond;
    const height = ROW / round.tokens.length;
    round.tokens.forEach((token, above) => {
      const y = top + ROW - (above + 1) * height;
      parts.push(shape("rect", { class: `stripe ${token.origin}`, x: zero + start * perSecond, y, width: Math.max(0.5, width - 0.75), height: Math.max(0.5, height - 0.75) }));
    });
    parts.push(...callsOf(answer, place, zero + start * perSecond, top, perSecond));
  });
  parts.push(shape("text", { x: zero + answer.seconds * perSecond + 6, y: top + 15 }, `${answer.seconds.toFixed(answer.seconds < 1 ? 2 : 1)} s`));
  return parts;
}

/** Draft steps, which share their round's drafting time evenly, and the target's pass, which is higher. */
function callsOf(answer, place, left, top, perSecond) {
  const [draft, pass] = answer.parts(place);
  const steps = depthOf(answer.rounds[place]);
  const drawn = [];
  for (let step = 0; step < steps; step += 1) {
    const width = (draft * perSecond) / steps;
    drawn.push(block("draft", left + step * width, width, top, CALLS / 2));
  }
  return [...drawn, block("pass", left + draft * perSecond, pass * perSecond, top, CALLS)];
}

function block(kind, x, width, top, height) {
  const y = top + ROW + 1 + CALLS - height;
  return shape("rect", { class: `call ${kind}`, x, y, width: Math.max(0.4, width - 0.6), height });
}
