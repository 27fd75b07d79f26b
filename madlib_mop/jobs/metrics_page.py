"""The page /metrics of a job worker, for Prometheus; called by ``madlib-mop work --metrics-port``.

It has no login. So it is served on 127.0.0.1 only, has numbers only, and answers a browser only by that address: a page
elsewhere whose name points at 127.0.0.1 gets nothing (DNS rebinding).
"""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from madlib_mop.errors import NotReady
from madlib_mop.jobs.metrics import DatabaseReader, Metrics

_ADDRESS = "127.0.0.1"  # defence: metrics-here-only = "0.0.0.0"
_HOSTS = (_ADDRESS, "localhost")
_REQUEST_TIMEOUT_S = 5.0
_MOST_CONNECTIONS = 20

_Answer = Callable[..., Any]
_App = Callable[[dict[str, Any], _Answer], Iterable[bytes]]


def serve_metrics(dsn: str, port: int) -> WSGIServer:
    """Serve the page in threads of this process, until it ends.

    Parameters
    ----------
    dsn : str
        A superuser's login.
    port : int
        Of 127.0.0.1; 0: a free one.

    Returns
    -------
    WSGIServer
        ``server_port`` is its port.

    Raises
    ------
    NotReady
        If the port cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(Metrics(DatabaseReader(dsn)))
    try:
        server = make_server(_ADDRESS, port, only_metrics(make_wsgi_app(registry)), _Server, _Handler)
    except (OSError, OverflowError) as error:
        raise NotReady(
            f"--metrics-port: port {port} of {_ADDRESS} cannot be used: {error}", hint="Choose another port."
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def only_metrics(app: _App) -> _App:
    """Return an application that passes on only GET of /metrics, asked for by this machine's names."""

    def answer(environ: dict[str, Any], start_response: _Answer) -> Iterable[bytes]:
        host = str(environ.get("HTTP_HOST", _ADDRESS)).rpartition(":")
        if (host[0] or host[2]) not in _HOSTS:  # defence: host-of-metrics
            status = "403 Forbidden"
        elif environ.get("PATH_INFO") != "/metrics":
            status = "404 Not Found"
        elif environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            status = "405 Method Not Allowed"
        else:
            return app(environ, start_response)
        start_response(status, [("Content-Type", "text/plain")])
        return [f"{status}\n".encode()]

    return answer


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A server with a limited number of connections: the oldest gives way, so that none can be held for ever."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *words: Any):
        self._lock = threading.Lock()
        self._open: list[Any] = []
        super().__init__(*words)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        with self._lock:
            self._open.append(request)
            for oldest in self._open[:-_MOST_CONNECTIONS]:  # defence: room-for-metrics
                with contextlib.suppress(OSError):  # it has ended by itself
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock, contextlib.suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape each few seconds is not news."""
