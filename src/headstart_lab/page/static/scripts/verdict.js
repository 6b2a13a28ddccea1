// Whether speculation was worth it in one pair of answers, and if not, why.

import { percent, times } from "./format.js";

const EVEN = 0.04;
const BUSY = 0.15;
const FEW_TOKENS = 1.3;
const MUCH_DRAFTING = 0.3;

/** `tone`: win, even or loss; a pair that was recorded several times wins or loses if it always did. Null until both answers are there. */
export function verdict({ run, plain, recorded }) {
  if (!plain?.stats || !run.stats || !run.rate || !plain.rate) return null;
  const factor = run.rate / plain.rate;
  const all = [factor, ...(recorded?.factors ?? [])];
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const tone = most < 1 - EVEN ? "loss" : least >= 1 + EVEN ? "win" : "even";
  const caption = {
    win: "as fast as plain decoding",
    even: `about as fast as plain decoding${most - least > 2 * EVEN ? `: from ${times(least)} to ${times(most)}` : ""}`,
    loss: "the speed of plain decoding: slower",
  }[tone];
  return { factor, tone, figure: times(factor), caption, reason: tone === "loss" ? lossReason(run, plain) : "", disturbed: disturbed(run, plain) };
}

function disturbed(run, plain) {
  const others = busyness(run, plain);
  return others > BUSY ? `Measured while other programs used ${percent(others)} of the machine’s cores; on an idle one it may differ.` : "";
}

function lossReason(run, plain) {
  const cost = run.seconds / run.rounds.length / (plain.seconds / plain.rounds.length);
  const fact = `A round took ${cost.toFixed(1)} times as long as a plain pass and brought ${run.meanLength.toFixed(1)} tokens.`;
  return `${fact} Likely reason: ${likelyReason(run, plain)}`;
}

function likelyReason(run, plain) {
  const others = busyness(run, plain);
  const drafting = run.stats.draft_seconds / run.seconds;
  if (others > BUSY) {
    return `the machine was busy. Other programs used ${percent(others)} of its cores, and checking many guesses needs more of them than saying one token. Try again when it is idle.`;
  }
  if (run.meanLength < FEW_TOKENS) return `hardly any guess was right. ${run.drafter} does not foresee this text.`;
  if (drafting > MUCH_DRAFTING) return `${run.drafter} itself took ${percent(drafting)} of the time.`;
  const rows = run.guesses / run.rounds.length + 1;
  return `a pass over ${rows.toFixed(1)} rows costs this machine much more than a pass over one. Smaller trees may pay.`;
}

const busyness = (run, plain) => Math.max(run.others ?? 0, plain.others ?? 0);
