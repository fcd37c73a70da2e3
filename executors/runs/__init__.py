"""One run in the foreground: from its configuration, through its directory, to its summary."""
