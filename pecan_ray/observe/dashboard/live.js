// Reads the page anew, and exchanges the parts that have changed; what has the keyboard's focus stays.
"use strict";
(() => {
  const main = document.querySelector("main[data-every]");
  const button = document.getElementById("pause");
  const told = document.getElementById("freshness");
  if (!main || !button || !told) return;
  let paused = false;
  button.hidden = false;
  told.textContent = `Read anew every ${main.dataset.every} s; `;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    told.textContent = paused ? "Paused; " : `Read anew every ${main.dataset.every} s; `;
  });
  const exchange = (fresh) => {
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (!other || part.contains(document.activeElement) || getSelection().containsNode(part, true)) continue;
      const open = [...part.querySelectorAll("details[open]")].map((one) => one.id);
      for (const id of open) other.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
      if (other.innerHTML !== part.innerHTML) part.innerHTML = other.innerHTML;
    }
  };
  const look = async () => {
    if (!paused && !document.hidden) {
      try {
        const answer = await fetch(location.href, { cache: "no-store" });
        if (answer.ok) exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
        else told.textContent = `No answer (${answer.status}); `;
      } catch {
        told.textContent = "No answer; ";
      }
    }
    setTimeout(look, 1000 * Number(main.dataset.every));
  };
  setTimeout(look, 1000 * Number(main.dataset.every));
})();
