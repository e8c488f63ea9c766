"""``python -m server.web``. Runs in: the web process."""

from server.web.main import main

if __name__ == "__main__":
    main()
