"""`python -m mtpx_cli`: the command `mtpx`, where it is not on the path."""

from mtpx_cli.main import main

main()
