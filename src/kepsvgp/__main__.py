"""`python -m kepsvgp` is the command line."""

import signal


def main() -> None:
    """Runs the command line; Ctrl-C ends it at once even while it is still being loaded."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kepsvgp.cli import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
