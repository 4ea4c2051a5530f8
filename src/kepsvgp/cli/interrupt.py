"""Ctrl-C, obeyed: soon, and even where a library swallows it or computes for long."""

import os
import signal
import sys
import threading
import time

# the exit code of what Ctrl-C ended, by convention
INTERRUPTED = 130
MESSAGE = "interrupted; what was saved is whole, and training goes on with --resume"

# time to tidy up; what is cut off then is no worse off than after a kill
_GRACE_SECONDS = 0.7


def end_soon_after_interrupt() -> None:
    """Ends the process some moments after the first SIGINT, if that has not ended it by then.

    Python raises `KeyboardInterrupt` between two of its own instructions, so not while a library
    computes, and some libraries catch it as they would any error. The system's own handler,
    however, writes the signal's number to a pipe at once, and a thread waits there.
    """
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(source,), daemon=True).start()


def _wait(source: int) -> None:
    while signal.SIGINT not in os.read(source, 64):
        pass
    time.sleep(_GRACE_SECONDS)
    sys.stderr.write(f"{MESSAGE}\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)
