"""What a run looks like from outside: status, why, metrics; all read from its directory."""
