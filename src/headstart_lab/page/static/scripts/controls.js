// The player's buttons, sliders and keys.

import { byId } from "./dom.js";

const OWN_KEYS = "input, select, textarea, summary, a, .token, .node, [role=tab]";

export function startControls(player) {
  const toggle = () => (player.playing ? player.pause() : player.play());
  byId("play").addEventListener("click", toggle);
  byId("step-back").addEventListener("click", () => player.turn(-1));
  byId("step-on").addEventListener("click", () => player.turn(1));
  byId("best").addEventListener("click", () => {
    player.pause();
    player.toBest();
  });
  byId("round-slider").addEventListener("input", () => {
    player.pause();
    player.seek(Number(byId("round-slider").value) - 1, "accept", 1);
  });
  byId("race-slider").addEventListener("input", () => {
    player.pause();
    player.seekClock(Number(byId("race-slider").value) / 1000);
  });
  byId("view-race").addEventListener("click", () => player.look("race"));
  byId("view-rounds").addEventListener("click", () => player.inside());
  document.addEventListener("keydown", (event) => {
    const { target } = event;
    const ours = target === document.body || target.id === "content" || byId("player").contains(target);
    if (!ours || event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey || byId("watch").hidden) return;
    if (!player.pair || target.closest(OWN_KEYS)) return;
    const done = press(player, toggle, event, target);
    if (done) event.preventDefault();
  });
}

function press(player, toggle, { key, shiftKey }, target) {
  if (key === " " && !target.closest("button")) return toggle() ?? true;
  const by = { ArrowRight: 1, ArrowLeft: -1 }[key];
  if (!by) return false;
  if (player.view === "race") {
    player.pause();
    player.seekClock(player.clock + (by * player.raceSeconds) / 40);
  } else if (shiftKey) {
    player.pause();
    player.seek(player.place + by, "accept", 1);
  } else {
    player.turn(by);
  }
  return true;
}
