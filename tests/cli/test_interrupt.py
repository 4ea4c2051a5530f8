"""Ctrl-C in places where Python alone would lose it."""

import signal
import subprocess
import sys

import pytest

SWALLOWING = """
import signal, time
from kepsvgp.cli.interrupt import end_soon_after_interrupt

signal.signal(signal.SIGINT, lambda *_: None)
end_soon_after_interrupt()
print("ready", flush=True)
while True:
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="processes are ended by signals")
def test_interrupt_that_is_swallowed_ends_the_process_all_the_same() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SWALLOWING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=300)
        finally:
            process.kill()

    assert process.returncode == 130
    assert said == "interrupted; what was saved is whole, and training goes on with --resume\n"
