"""The start of the command line: the ``headstart`` script, and ``python -m headstart`` where there is none."""

import signal


def main() -> None:
    """Run the command of ``sys.argv``; does not return."""
    # Until a command runs there is nothing to tidy up: Ctrl-C ends the process as it ends any program, without a
    # traceback from the middle of an import. Where it is ignored (a script's background jobs) that stays.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from headstart.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
