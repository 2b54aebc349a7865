"""Servers of gRPC services from plain methods, without generated stubs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import grpc

_MOST_BYTES = 4 * 2**20  # of a message
_STOP_WITHIN_S = 1.0


class Method(NamedTuple):
    """A method of a service.

    Attributes:
        answer: Coroutine of request and context, or for a stream a generator of them.
        request: Class of its request.
        response: Class of its responses.
        streams: Whether it answers with a stream.
        asks: Whether its requests are a stream.
    """

    answer: Callable[[Any, Any], Any]
    request: Any
    response: Any
    streams: bool = False
    asks: bool = False


def check_grpc(protocol: str) -> None:
    """Refuses to go on without gRPC.

    Raises:
        ValueError: It is not installed.
    """
    missing = [name for name in ("grpc", "google.protobuf") if not _installed(name)]
    if missing:
        raise ValueError(f"protocols=[{protocol}] needs {' and '.join(missing)}: pip install -e '.[serve]'")


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class GRPCServer:
    """A server of gRPC services.

    Args:
        services: Methods by name, by full name of the service.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.
        most_bytes: Longest message.
        certificate: PEM of key, certificate, and of the authority of clients' certificates, which need none if that is
            None; None: no TLS.
    """

    def __init__(
        self,
        services: Mapping[str, Mapping[str, Method]],
        address: str,
        port: int,
        most_bytes: int = _MOST_BYTES,
        certificate: tuple[bytes, bytes, bytes | None] | None = None,
    ) -> None:
        self._services, self.address, self.port = services, address, port
        self._most_bytes, self._certificate = most_bytes, certificate
        self._server: grpc.aio.Server | None = None

    async def start(self) -> str:
        """Starts listening; returns `HOST:PORT`.

        Raises:
            OSError: The port is taken.
        """
        import grpc

        server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", self._most_bytes), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=1000,
        )
        for name, methods in self._services.items():
            handlers = {key: _handler(method) for key, method in methods.items()}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        host = f"[{self.address}]" if ":" in self.address else self.address
        try:
            self.port = self._add_port(server, f"{host}:{self.port}")
        except RuntimeError as error:
            raise OSError(f"{host}:{self.port} cannot be listened on: {error}") from None
        await server.start()
        self._server = server
        return f"{host}:{self.port}"

    def _add_port(self, server: grpc.aio.Server, where: str) -> int:
        import grpc

        if self._certificate is None:
            return int(server.add_insecure_port(where))
        key, certificate, authority = self._certificate
        credentials = grpc.ssl_server_credentials([(key, certificate)], authority, authority is not None)
        return int(server.add_secure_port(where, credentials))

    async def stop(self) -> None:
        """Stops listening, streams included."""
        if self._server is not None:
            await self._server.stop(_STOP_WITHIN_S)
            self._server = None


def _handler(method: Method) -> grpc.RpcMethodHandler:
    import grpc

    make = getattr(
        grpc,
        f"{'stream' if method.asks else 'unary'}_{'stream' if method.streams else 'unary'}_rpc_method_handler",
    )
    return make(method.answer, method.request.FromString, method.response.SerializeToString)
