"""``python -m server.tracing``. Runs in: the traces process."""

from server.tracing.main import main

if __name__ == "__main__":
    main()
