"""Lets `python -m cli` run the command line; autostart starts the daemon this way."""

from cli.main import main

main()
