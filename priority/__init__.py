"""Who goes first: pure ordering decisions, without I/O, clock or asyncio.

Imported by `agentflow` and `executors`; imports neither.
"""
