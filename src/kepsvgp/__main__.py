"""`python -m kepsvgp` is the command line."""

import signal


def main() -> None:
    """Runs the command line; Ctrl-C ends it within a second, even while it is being loaded."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kepsvgp.cli import main as run
    from kepsvgp.cli.interrupt import end_soon_after_interrupt

    end_soon_after_interrupt()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
