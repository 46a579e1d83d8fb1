"""The Ray that tasks run on: begun here or joined, and watched while they run."""

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from stepwell.ordered import thread_count

_RETRIES = 3
_CONNECT_S = 5.0
_LOOK_S = 1.0
"""How often is looked whether Ray's head is still there: its own client would wait for a minute,
and then end the process."""
_OBJECT_BYTES = 128 << 20  # results of tasks are small: what is large is written to files


class Cluster:
    """Runs tasks, some at a time."""

    def __init__(self, workers: int | None, client: str | None = None) -> None:
        """`client` is the address of a server that stands between this process and the head."""
        self._head = _place(client or ray.get_runtime_context().gcs_address)
        resources: Any = ray.cluster_resources  # which has no types
        found = int(resources().get("CPU", 1))
        self._ahead = 2 * found if workers is None else workers

    def run(
        self, work: Callable[..., Any], calls: Iterable[tuple[Any, ...]], name: Callable[[int], str]
    ) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each call, in the order in which they end.

        A call whose worker dies is made again, a few times. Raises what a call raises,
        `ChildProcessError` where the workers of a call keep dying, and `ConnectionError` when
        Ray's head is gone.
        """
        task = ray.remote(num_cpus=1, max_retries=_RETRIES)(work)
        waiting, running = iter(enumerate(calls)), dict[Any, int]()
        try:
            while True:
                while len(running) < self._ahead and (call := next(waiting, None)) is not None:
                    number, arguments = call
                    running[task.remote(*arguments)] = number
                if not running:
                    return
                for ref in self._ended(list(running)):
                    number = running.pop(ref)
                    yield number, _result(ref, name(number))
        finally:
            if running and self._is_there():
                for ref in running:
                    ray.cancel(ref, force=True)

    def _ended(self, refs: list[Any]) -> list[Any]:
        while True:
            ended: list[Any]
            ended, _ = ray.wait(refs, num_returns=1, timeout=_LOOK_S)
            if not self._is_there():
                host, port = self._head
                raise ConnectionError(f"Ray's head at {host}:{port} is gone")
            if ended:
                return ended

    def _is_there(self) -> bool:
        return _answers(*self._head)


@contextmanager
def joined(address: str, workers: int | None) -> Iterator[Cluster]:
    """A cluster for a block: a new one of this machine's cores for "local", or that at an address.

    One that this process has joined before is used, and left as it is. Raises `ConnectionError`
    where nobody answers.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers: expected at least 1, got {workers}")
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in ("local", "auto", here):
            raise ValueError(f"address: this process has joined Ray at {here}, got {address!r}")
        yield Cluster(workers)
        return
    client = None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        workers = thread_count(workers, "workers")
        ray.init(
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            object_store_memory=_OBJECT_BYTES,
            **quiet,
        )
    else:
        place = address.removeprefix("ray://")
        client = place if place != address else None
        if address != "auto" and not _answers(*_place(place), _CONNECT_S):
            raise ConnectionError(f"address: nobody answers at {address}; is Ray's head there?")
        ray.init(address=address, **quiet)
    try:
        yield Cluster(workers if address != "local" else None, client)
    finally:
        ray.shutdown()


def _result(ref: Any, name: str) -> Any:
    try:
        return ray.get(ref)
    except RayTaskError as error:
        raise cause_of(error) from None
    except RayError as error:
        first = str(error).strip().partition("\n")[0]
        raise ChildProcessError(
            f"{name}: its worker died, as did those of {_RETRIES} attempts more: {first}"
        ) from None


def cause_of(error: RayTaskError) -> Exception:
    """The error as it was raised in a task."""
    cause: Any = error.cause
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    return cause if isinstance(cause, Exception) else error


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"address: expected 'local', 'auto' or host:port, got {address!r}")
    return host.strip("[]"), int(port)


def _answers(host: str, port: int, timeout_s: float = _LOOK_S) -> bool:
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError:
        return False
    return True
