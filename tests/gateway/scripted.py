"""What tests of the browser's client run in a page: a scripted connection, and a clock that goes when it is told to."""

from typing import Any

from tests.gateway.support import Site, browse_until
from tests.report.browser import Browser

PRELUDE = """
const tick = clock();
const { made, options } = scripted();
const begin = async (more = {}) => {
  const noted = listen({ ...options, ...more });
  await noted.client.start();
  return noted;
};
const greet = async (socket, offset = 0) => {
  socket.onopen();
  socket.tell(subscribed(offset));
  await settled();
};
"""


def trial(chromium: Browser, site: Site, script: str) -> Any:
    """What an async function's body returns in a fresh page."""
    chromium.open(site.address)
    browse_until(chromium, "return window.isReady")
    return chromium.run(f"return (async () => {{ {PRELUDE} {script} }})()")
