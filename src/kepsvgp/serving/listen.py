"""A service on a port of this machine, until it is told to stop."""

import asyncio
import signal
import socket
from typing import Any

from kepsvgp.serving.http import NEEDS, Service

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError:
    raise NEEDS from None

# of idle connections too
_CONNECTIONS = 512
_HEADER_BYTES = 2**14


class _Impatient(H11Protocol):
    """Closes a connection on which nothing whole arrives; uvicorn itself would wait for ever."""

    seconds = 30.0
    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._end is not None:
            self._end.cancel()

    def _watch(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._end = self._end or self.loop.call_later(self.seconds, self._close)
        elif self._end is not None:
            self._end.cancel()
            self._end = None

    def _close(self) -> None:
        self._end = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def bind(host: str, port: int) -> socket.socket:
    """The socket, taken before all else, so that a port that is in use is told at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def listen(service: Service, sock: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT comes; requests that are under way are answered first."""
    _Impatient.seconds = service.limits.seconds
    config = uvicorn.Config(
        service.app(), http=_Impatient, ws="none", lifespan="on", log_level="error",
        server_header=False, limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=_HEADER_BYTES,
        timeout_graceful_shutdown=round(2 * service.limits.seconds),
    )  # fmt: skip
    # uvicorn obeys these and then raises them again, which ends nothing that has not ended;
    # Ctrl-C is obeyed in its time, not within a second
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run(sockets=[sock])
