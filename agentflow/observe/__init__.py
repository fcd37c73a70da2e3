"""What happened, for whoever looks: event sinks.

events   nowhere, or a list
jsonl    events.jsonl of a run directory
"""
