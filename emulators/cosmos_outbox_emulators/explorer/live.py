"""The script of the first page: it renews the parts that changed, and the page is read without it too."""

from __future__ import annotations

ADDRESS = "/explorer/live.js"
REFRESH_S = 5

# While a reader has the focus in a part of the page, that part is not renewed, so that nothing disappears while it is used.
SCRIPT = f"""
const parts = page => page.querySelectorAll("main > section, footer");
async function renew() {{
  if (document.hidden || String(getSelection())) return;
  const answer = await fetch(location.href, {{ signal: AbortSignal.timeout({REFRESH_S * 1000}) }}).catch(() => null);
  const text = answer?.ok ? await answer.text().catch(() => null) : null;
  document.getElementById("away").hidden = text !== null;
  if (text === null) return;
  const fresh = parts(new DOMParser().parseFromString(text, "text/html"));
  parts(document).forEach((part, index) => {{
    const now = fresh[index];
    if (!now || now.innerHTML === part.innerHTML || part.contains(document.activeElement)) return;
    const left = part.querySelector(".scroll")?.scrollLeft ?? 0;
    part.innerHTML = now.innerHTML;
    part.querySelector(".scroll")?.scrollTo(left, 0);
  }});
}}
async function keepRenewing() {{
  await renew();
  setTimeout(keepRenewing, {REFRESH_S * 1000});
}}
setTimeout(keepRenewing, {REFRESH_S * 1000});
document.addEventListener("visibilitychange", renew);
"""
