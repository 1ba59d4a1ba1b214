"""
The script of the explorer's first page. It renews the parts of the page that changed. A browser that runs no scripts shows the
page, too.
"""

from __future__ import annotations

ADDRESS = "/explorer/live.js"
REFRESH_S = 5

# A part of the page that has the focus is not renewed, so that nothing disappears while the reader uses it.
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
