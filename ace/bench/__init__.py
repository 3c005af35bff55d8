"""Benchmarks: suites of tasks, their runs, and the statistics of what came out."""
