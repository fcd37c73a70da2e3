"""What happened, for whoever looks: from event sinks to reports.

    emit ▶ jsonl ▶ events.jsonl ▶ records ▶ run_state ▶ status, figures, run_trace

events     sinks: nowhere, or a list
jsonl      the sink that is events.jsonl of a run directory
records    reading it again, also while it grows
doing      what an episode does, by its events: one table
run_state  where the whole run stands: the fold over all events
slots      why generation slots stand idle
histogram  counts by bound
figures    the run's state as metrics
trace      lanes, slices and counters in Chrome's format; run_trace draws a run with them
"""
