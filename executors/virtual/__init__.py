"""Whole runs in virtual time: production executors on simulated parts, faults included."""
