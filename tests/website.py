"""A web server on this machine, for the tests of downloads."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Website:
    """Serves the files of a folder until it is closed, and records the paths of all requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        self.failures = 0  #: how many of the next requests are answered with an error
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self, directory=str(folder)))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def address(self, path: str) -> str:
        """The address of a file on the server."""
        return f"http://127.0.0.1:{self._server.server_port}/{path}"

    def publish(self, path: str, content: bytes) -> str:
        """Puts a file on the server and returns its address."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(content)
        return self.address(path)

    def close(self) -> None:
        """Stops the server. A second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, website: Website, *arguments: Any, **settings: Any) -> None:
        self.website = website
        super().__init__(*arguments, **settings)

    def do_GET(self) -> None:
        self.website.requests.append(self.path)
        if self.website.failures:
            self.website.failures -= 1
            self.send_error(503)
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass
