// Updates the status page every few seconds. Without this script the page shows what was known when it was loaded. A new request is
// made only after the last one has succeeded or failed.
const every = 5000; // milliseconds
const words = part => part.textContent.replace(/\d+/g, "");
async function renew() {
  if (document.hidden || String(getSelection())) return;
  const page = new URL(location.href);
  page.searchParams.delete("key"); // do not search for the key again, because a search costs request units; the answer on the page stays
  const answer = await fetch(page, { signal: AbortSignal.timeout(every) }).catch(() => null);
  const text = answer?.ok ? await answer.text().catch(() => null) : null;
  document.getElementById("away").hidden = text !== null;
  if (text === null) return;
  const fresh = new DOMParser().parseFromString(text, "text/html");
  document.title = fresh.title;
  for (const part of document.querySelectorAll("[data-live]")) {
    const now = fresh.getElementById(part.id);
    if (!now || now.innerHTML === part.innerHTML || part.contains(document.activeElement)) continue;
    const open = [...part.querySelectorAll("details")].map(one => one.open);
    const left = [...part.querySelectorAll(".scroll")].map(one => one.scrollLeft);
    // Let a screen reader read only what is new, and not each change of a number of seconds.
    if (part.role) part.ariaLive = words(now) === words(part) ? "off" : "polite";
    part.className = now.className;
    part.innerHTML = now.innerHTML;
    part.querySelectorAll("details").forEach((one, index) => { one.open = open[index] ?? false; });
    part.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = left[index] ?? 0; });
  }
}
async function keepRenewing() {
  await renew();
  setTimeout(keepRenewing, every);
}
setTimeout(keepRenewing, every);
document.addEventListener("visibilitychange", renew);
