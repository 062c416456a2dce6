"""A call in a thread that lasts as long as this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


def call_in_persistent_thread(function: Callable[[], None], name: str) -> None:
    """Call a function in the main thread, if this is it, else in a daemon thread that never ends; wait for its end.

    Linux ends processes that asked for it with the thread that has started them (PR_SET_PDEATHSIG), not with its
    process; those of Ray ask for it.
    """
    if threading.current_thread() is threading.main_thread():
        function()
        return
    done: Future[None] = Future()

    def call_then_wait() -> None:
        try:
            function()
        except BaseException as error:
            # This thread may end, because nothing of it lives on.
            done.set_exception(error)
            return
        done.set_result(None)
        threading.Event().wait()

    threading.Thread(target=call_then_wait, name=name, daemon=True).start()
    done.result()
