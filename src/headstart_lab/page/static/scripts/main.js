// Starts the page: who is served, the key where one is asked for, the tabs, and a first visit's guide.

import { ApiError, getJson, useKey } from "./api.js";
import { Calculator } from "./calculator.js";
import { startControls } from "./controls.js";
import { Conversation, status } from "./conversation.js";
import { byId } from "./dom.js";
import { Gallery, place, recordedPair } from "./gallery.js";
import { Guide } from "./guide.js";
import { Player } from "./player.js";
import { Rules } from "./rules.js";
import { measuredPoint } from "./run.js";
import { startSettings } from "./settings.js";
import { startTabs } from "./tabs.js";

const MEASURING_PROMPT = "Write a Python class for a bank account with deposit, withdraw and transfer methods.";
/** A page that was exported holds its data itself, and there is no server to ask. */
const EXPORTED = byId("recorded-runs");

const player = new Player(() => guide.reach(4));
const gallery = new Gallery(player);
startControls(player);
for (const part of document.querySelectorAll("[data-served]")) part.hidden = Boolean(EXPORTED);
for (const part of document.querySelectorAll("[data-exported]")) part.hidden = !EXPORTED;

const guide = new Guide([
  ...(EXPORTED
    ? [
        { told: "Choose one of the recorded answers.", target: "recorded", button: "Next", deed: () => guide.reach(1) },
        { told: "Play the race: both answers run on the clocks that were measured.", target: "lanes", button: "Play", deed: () => (player.race(), guide.reach(2)) },
      ]
    : [
        { told: "Ask something of your own, or take an example.", target: "composer", button: "Use an example", deed: () => conversation.tryExample() },
        { told: "First it guesses ahead, then the same model answers plainly: in turns, so that neither slows the other.", target: "player" },
      ]),
  { told: "Compare: is the text the same? The number says how many times as fast guessing ahead was.", target: "factor", button: "Next", deed: () => guide.reach(3) },
  { told: "Choose any word: it opens the round that it came from, with all that was guessed there.", target: "lanes", button: "Open the best round", deed: () => player.inside() },
]);

function failed(error) {
  if (error instanceof ApiError && error.status === 401) {
    byId("key-form").hidden = false;
    byId("key").focus();
  } else {
    status(error.message, true);
    byId("rules-status").textContent = error.message;
  }
}

async function connect() {
  const state = await getJson("/lab/state");
  byId("key-form").hidden = true;
  byId("served").textContent = `${state.model} · ${state.backend}`;
  byId("version").textContent = `Headstart ${state.version}.`;
  startSettings(state);
  gallery.served = place(state.model, state.backend, state.machine);
  gallery.refresh();
  byId("send").disabled = false;
}

const calculator = new Calculator(() => conversation.send(MEASURING_PROMPT, true));
const rules = new Rules(EXPORTED ? prepared(byId("biased-rules")) : asked, failed);
let conversation;
if (EXPORTED) showRecorded(JSON.parse(EXPORTED.textContent).runs.map(recordedPair));
else startServed();

const openers = { watch: () => gallery.refresh(), calculator: () => calculator.refresh(), rules: () => rules.open() };
let opened = "watch";
startTabs(document.querySelector("[role=tablist]"), (panel) => {
  if (panel !== "watch") player.pause();
  opened = panel;
  openers[panel]();
});

function startServed() {
  byId("send").disabled = true;
  conversation = new Conversation(gallery, guide, (point) => calculator.measured(point), failed);
  byId("key-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    useKey(byId("key").value.trim());
    try {
      await connect();
      openers[opened]();
    } catch (error) {
      byId("key-note").textContent = error.message;
      byId("key").select();
    }
  });
  connect().catch(failed);
}

function showRecorded(pairs) {
  for (const pair of pairs) {
    gallery.add(pair);
    pair.chip.addEventListener("click", () => guide.reach(1));
  }
  if (!pairs.length) return;
  gallery.open(pairs[0]);
  const point = measuredPoint(pairs[0].run, pairs[0].plain);
  if (point) calculator.measured(point);
}

/** What the biased rules say, from the server. */
function asked(likeness, seed, signal) {
  return getJson("/lab/biased-rules", { likeness, seed }, signal);
}

/** Likewise from the page itself, where each likeness was drawn once. */
function prepared(holder) {
  const drawn = JSON.parse(holder.textContent);
  return async (likeness) => drawn[Math.round(likeness * (drawn.length - 1))];
}
