// The conversation, kept in this tab across a reload.

import { Run } from "./run.js";

const NAME = "headstart-conversation";

/** Keep messages, answers and what stands in the message box; the oldest answers are left out where there is no room. */
export function keep(messages, pairs, draft) {
  const kept = pairs.filter((pair) => !pair.live).map(saved);
  for (;;) {
    try {
      sessionStorage.setItem(NAME, JSON.stringify({ messages, pairs: kept, draft }));
      return;
    } catch {
      if (!kept.length) return;
      kept.shift();
    }
  }
}

/** What was kept. */
export function kept() {
  const { messages = [], pairs = [], draft = "" } = JSON.parse(sessionStorage.getItem(NAME) ?? "{}");
  return { messages, pairs: pairs.map(restored), draft };
}

const saved = ({ chip, ...pair }) => ({ ...pair, run: pair.run.events, plain: pair.plain?.events ?? null });

const restored = (pair) => ({ ...pair, run: Run.of(pair.run, false), plain: pair.plain && Run.of(pair.plain, true) });
