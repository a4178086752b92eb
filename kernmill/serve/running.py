"""Runs the application with uvicorn until SIGINT or SIGTERM; running answers have some time to end."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping

import uvicorn

from kernmill.ir import SettingError

from .app import load_model, make_app
from .limits import ServerOptions

__all__ = ["check_options", "run"]


def check_options(options: ServerOptions) -> None:
    """Check that the server is safe to start.

    Raises:
        SettingError: another address than loopback without a key.
    """
    if not options.is_loopback and not options.api_keys:
        raise SettingError(
            f"serve: --host {options.host} is reachable from other machines, and there is no API key: everybody could "
            "use the models. Give one with --api-key KEY, or listen on 127.0.0.1."
        )


def run(paths: Mapping[str, str], options: ServerOptions) -> int:
    """Serve models by name; returns the exit status: 1 if the only model cannot be loaded.

    Raises:
        SettingError: the address cannot be used, or is not safe.
    """
    check_options(options)
    failures: list[bool] = []

    def fail() -> None:
        failures.append(True)
        server.should_exit = True

    config = uvicorn.Config(
        make_app(paths, options, load_model, fail),
        http="h11",  # httptools, which is taken where it is installed, has no limit for headers
        log_level="info" if options.is_verbose else "warning", access_log=options.is_verbose,
        server_header=False, date_header=False, timeout_keep_alive=30, ws="none",
        timeout_graceful_shutdown=max(1, round(options.drain_s)), h11_max_incomplete_event_size=1 << 16,
    )  # fmt: skip
    sock = _socket(options)
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"kernmill: serving {', '.join(paths)} at http://{shown}:{port}", file=sys.stderr, flush=True)
    server = uvicorn.Server(config)
    server.run(sockets=[sock])
    return int(bool(failures))


def _socket(options: ServerOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((options.host, options.port))
    except OSError as error:
        sock.close()
        raise SettingError(
            f"serve: cannot listen on {options.host}:{options.port}: {error.strerror}. Choose another --port."
        ) from None
    return sock
