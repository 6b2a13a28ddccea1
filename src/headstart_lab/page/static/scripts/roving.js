// Many things, one tab stop: arrows move inside of a group.

/** Makes `item` the one that Tab reaches among the group's items. */
export function reach(group, item) {
  group.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
  item.setAttribute("tabindex", "0");
}

/** `next` maps a focused item and a key to the item to go to, or nothing. */
export function rove(group, selector, next) {
  group.addEventListener("keydown", (event) => {
    const item = event.target.closest(selector);
    const to = item && next(item, event.key);
    if (!to) return;
    event.preventDefault();
    reach(group, to);
    to.focus();
  });
}
