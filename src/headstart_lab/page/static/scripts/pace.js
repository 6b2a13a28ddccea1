// How fast rounds and races are played: paced for the eye, or as measured and slowed down.

import { element } from "./dom.js";
import { STEPS } from "./run.js";

const EYE = [0.5, 1, 2, 4];
const SLOWER = [1, 2, 4, 10, 25, 50, 100, 250, 500, 1000];
const ROUND_SECONDS = [0.15, 6];
const RACE_SECONDS = [1, 60];
const COMFORTABLE_RACE = 9;

/** The choices for playing a run round by round; [value, text, group]. */
export function roundPaces(run) {
  const typical = median(run.rounds.map((_, place) => run.endOf(place) - (place ? run.endOf(place - 1) : 0)));
  return [
    ...EYE.map((speed) => [`eye:${speed}`, `${speed}×`, "For the eye"]),
    ...fitting(typical, ROUND_SECONDS).map((slower) => [`measured:${slower}`, slowed(slower), "As measured"]),
  ];
}

/** Likewise for the race. */
export function racePaces(seconds) {
  const choices = new Set([1, ...fitting(seconds, RACE_SECONDS)]);
  return [...choices].map((slower) => [`measured:${slower}`, slowed(slower), "As measured"]);
}

/** The pace at which a race can be followed. */
export function comfortable(seconds) {
  return `measured:${SLOWER.findLast((slower) => seconds * slower <= COMFORTABLE_RACE) ?? 1}`;
}

/** Fill a select with choices, and keep what is chosen where it is still there. */
export function offer(select, choices, otherwise) {
  const before = select.value;
  const groups = grouped(choices);
  select.replaceChildren(
    ...[...groups].map(([label, members]) =>
      element("optgroup", { label }, ...members.map(([value, text]) => element("option", { value }, text))),
    ),
  );
  select.value = choices.some(([value]) => value === before) ? before : otherwise;
}

/** Milliseconds that a step of a round is played for. */
export function duration(pace, run, place, step) {
  const [kind, factor] = pace.split(":");
  if (kind === "measured") return 1000 * run.parts(place)[STEPS.indexOf(step)] * Number(factor);
  const round = run.rounds[place];
  const guesses = Math.min(12, round.nodes.length);
  const lengths = { draft: guesses ? 450 + 90 * guesses : 60, verify: guesses ? 950 : 420, accept: guesses ? 750 + 130 * Math.min(8, round.tokens.length) : 380 };
  return lengths[step] / Number(factor);
}

/** How many times faster than at pace 1 things move. */
export function speedOf(pace) {
  const [kind, factor] = pace.split(":");
  return kind === "eye" ? Number(factor) : 1;
}

export const slowness = (pace) => Number(pace.split(":")[1]);

const slowed = (slower) => (slower === 1 ? "real time" : `slowed ${slower}×`);

const fitting = (seconds, [least, most]) => SLOWER.filter((slower) => seconds * slower >= least && seconds * slower <= most);

function grouped(choices) {
  const groups = new Map();
  for (const choice of choices) groups.set(choice[2], [...(groups.get(choice[2]) ?? []), choice]);
  return groups;
}

function median(values) {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}
