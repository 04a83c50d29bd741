"""Work that signals do not cut in two."""
from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = tuple(signal.valid_signals())


@contextlib.contextmanager
def uncut(repeats: bool = False) -> Iterator[None]:
    """Delays the handlers of signals that Python calls, such as that of Ctrl-C, until its end.

    A handler may raise between any two calls, and what is done by several would be done by half.
    With `repeats`, a signal that comes again is handled at once: for work that may wait for others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    delayed: dict[int, Any] = {}      # handlers by signal
    came: list[tuple[int, Any]] = []  # signals, each with the frame that it came in

    def note(number: int, frame: Any) -> None:
        if repeats and any(number == earlier for earlier, _ in came):
            delayed[number](number, frame)
        came.append((number, frame))

    try:
        for number in _SIGNALS:
            if callable(handler := signal.getsignal(number)):
                delayed[number] = handler
                signal.signal(number, note)
        yield
    finally:
        handlers = dict(delayed)
        raised = _restore(delayed)
        for number, frame in came:
            handlers[number](number, frame)
        if raised is not None:
            raise raised


def _restore(delayed: dict[int, Any]) -> BaseException | None:
    """Puts handlers back. Returns what one of them raises meanwhile."""
    raised = None
    while delayed:
        try:
            number, handler = next(iter(delayed.items()))
            signal.signal(number, handler)
            del delayed[number]
        except BaseException as error:  # noqa: BLE001: the others must be put back
            raised = error
    return raised
