// Tokens on their way from the tree into the text: copies that fly, and leave nothing behind.

import { element } from "./dom.js";

const MILLISECONDS = 480;
const APART = 45;

/** From each node to the token of the same place, where both can be seen. */
export function fly(nodes, tokens, speed) {
  nodes.slice(0, tokens.length).forEach((node, place) => {
    const [from, to] = [node.drawn.getBoundingClientRect(), tokens[place].getBoundingClientRect()];
    const box = tokens[place].closest(".words").getBoundingClientRect();
    if (!from.width || to.bottom > box.bottom + 4 || to.top < box.top - 4) return;
    const copy = element("span", { class: `ghost token ${node.state}`, "aria-hidden": "true" }, node.short);
    document.body.append(copy);
    const at = (box) => `translate(${box.left}px, ${box.top}px)`;
    const flight = copy.animate(
      [
        { transform: `${at(from)} scale(1.05)`, opacity: 1 },
        { transform: `${at(to)} scale(1)`, opacity: 0.9, offset: 0.9 },
        { transform: at(to), opacity: 0 },
      ],
      { duration: MILLISECONDS / speed, delay: (place * APART) / speed, easing: "cubic-bezier(0.5, 0, 0.2, 1)", fill: "both" },
    );
    flight.onfinish = flight.oncancel = () => copy.remove();
  });
}
