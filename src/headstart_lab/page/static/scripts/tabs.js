// Tabs that follow the keyboard pattern of the ARIA guide: one tab stop, arrows move and open.

import { byId } from "./dom.js";

/** `opened` is called with the id of a panel each time it is shown. */
export function startTabs(list, opened) {
  const tabs = [...list.querySelectorAll("[role=tab]")];

  function open(tab, focus) {
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      byId(other.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (focus) tab.focus();
    const panel = tab.getAttribute("aria-controls");
    history.replaceState(null, "", `#${panel}`);
    opened(panel);
  }

  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) open(tab, false);
  });
  list.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    open(tabs[(to + tabs.length) % tabs.length], true);
  });
  const wanted = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
  if (wanted) open(wanted, false);
}
