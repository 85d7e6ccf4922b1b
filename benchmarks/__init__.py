"""Measures streamhouse-spark beside what a user would take instead: same data, same run, alternating.

``python -m benchmarks --help`` says how to run it; ``README.md`` here says what each figure means.
"""
