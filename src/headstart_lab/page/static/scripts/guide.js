// A first visit, led by the hand: ask, race, compare, look inside.

import { byId, element } from "./dom.js";

const SEEN = "headstart-guide";
/** Pixels of what is pointed at that should be seen. */
const ROOM = 120;
const STEPS = ["Ask", "Race", "Compare", "Look inside"];

export class Guide {
  /** `steps`: for each step what it says, the id of what it points at, and where there is a button its text and deed. */
  constructor(steps) {
    this.steps = steps;
    this.at = localStorage.getItem(SEEN) ? STEPS.length : 0;
    byId("guide-steps").append(...STEPS.map((name) => element("li", {}, name)));
    byId("guide-on").addEventListener("click", () => this.steps[this.at].deed());
    byId("guide-skip").addEventListener("click", () => this.reach(STEPS.length));
    this.#draw();
  }

  /** Go on to a step; behind the last one the guide is gone for good. `back`: also to an earlier one. */
  reach(step, back = false) {
    if (this.at >= STEPS.length || (step <= this.at && !back)) return;
    this.at = step;
    if (step >= STEPS.length) localStorage.setItem(SEEN, "yes");
    this.#draw();
  }

  #draw() {
    const step = this.steps[this.at];
    byId("guide").hidden = !step;
    document.querySelector(".guided")?.classList.remove("guided");
    if (!step) return;
    [...byId("guide-steps").children].forEach((item, place) => {
      item.classList.toggle("past", place < this.at);
      if (place === this.at) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
    });
    byId("guide-told").textContent = step.told;
    byId("guide-on").hidden = !step.button;
    byId("guide-on").textContent = step.button ?? "";
    const target = byId(step.target);
    target.classList.add("guided");
    if (target.getBoundingClientRect().top > innerHeight - ROOM) target.scrollIntoView({ block: "nearest" });
  }
}
