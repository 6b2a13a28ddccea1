// Starts the page: recorded runs, who is served, the key where one is asked for, and the three tabs.

import { ApiError, getJson, useKey } from "./api.js";
import { Calculator } from "./calculator.js";
import { startControls } from "./controls.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { Gallery, recordedPair } from "./gallery.js";
import { Player } from "./player.js";
import { Rules } from "./rules.js";
import { startSettings } from "./settings.js";
import { startTabs } from "./tabs.js";

const MEASURING_PROMPT = "Write a Python class for a bank account with deposit, withdraw and transfer methods.";
/** A page that was exported holds its runs itself, and there is no server to ask. */
const EXPORTED = byId("recorded-runs");

const player = new Player();
const gallery = new Gallery(player);
startControls(player);

function failed(error) {
  if (error instanceof ApiError && error.status === 401) {
    byId("key-form").hidden = false;
    byId("key").focus();
  } else {
    byId("served").textContent = error.message;
  }
}

async function connect() {
  const state = await getJson("/lab/state");
  byId("key-form").hidden = true;
  byId("served").textContent = `${state.model} · ${state.backend}`;
  byId("version").textContent = `Headstart ${state.version}.`;
  startSettings(state);
  byId("send").disabled = false;
}

/** Play the recorded runs, unless something was asked for meanwhile. */
function offerRecorded({ runs }) {
  const pairs = runs.map(recordedPair);
  for (const pair of pairs) gallery.add(pair);
  if (gallery.pair || !pairs.length) return;
  gallery.open(pairs[0]);
  gallery.begin();
}

function startServed() {
  byId("send").disabled = true;
  const conversation = new Conversation(gallery, (point) => calculator.measured(point));
  const calculator = new Calculator(() => conversation.send(MEASURING_PROMPT, true), failed);
  const rules = new Rules(failed);
  const openers = { watch: () => gallery.pair && gallery.refresh(), calculator: calculator.refresh, rules: rules.open };
  let opened = "watch";
  startTabs(document.querySelector("[role=tablist]"), (panel) => {
    if (panel !== "watch") player.pause();
    opened = panel;
    openers[panel]();
  });
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
  getJson("/lab/recorded/runs.json").then(offerRecorded, () => {});
}

function startExported() {
  for (const part of document.querySelectorAll("[data-served]")) part.hidden = true;
  for (const part of document.querySelectorAll("[data-exported]")) part.hidden = false;
  offerRecorded(JSON.parse(EXPORTED.textContent));
}

if (EXPORTED) startExported();
else startServed();
