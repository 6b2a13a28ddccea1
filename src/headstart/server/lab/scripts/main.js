// Starts the page: who is served, the key where one is asked for, and the three tabs.

import { ApiError, getJson, useKey } from "./api.js";
import { Calculator } from "./calculator.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { Rules } from "./rules.js";
import { startSettings } from "./settings.js";
import { startTabs } from "./tabs.js";

const MEASURING_PROMPT = "Write a Python class for a bank account with deposit, withdraw and transfer methods.";

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

byId("send").disabled = true;
const conversation = new Conversation((point) => calculator.measured(point));
const calculator = new Calculator(() => conversation.send(MEASURING_PROMPT, true), failed);
const rules = new Rules(failed);
const openers = { watch: () => {}, calculator: calculator.refresh, rules: rules.open };
let opened = "watch";

startTabs(document.querySelector("[role=tablist]"), (panel) => {
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
