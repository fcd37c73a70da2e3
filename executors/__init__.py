"""Who drives many episodes: executors, sources of samples, runs and their directories, the CLI.

    naive      NaiveExecutor: whole trajectories, up to a number of them at a time
    source     where samples come from and go back to
    session    Rollout: one run, from its configuration to its summary
    run_dir    what a run leaves on disk
    simulate   whole runs in virtual time
    cli        the `agentflow` command

The top of the imports: nothing in `agentflow` or `priority` knows this package.
"""
