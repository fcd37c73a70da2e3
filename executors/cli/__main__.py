"""`python -m executors.cli` is the command `agentflow`."""

from executors.cli import main

if __name__ == "__main__":
    main()
