"""The contestants: each module is a program of its own, run as `python -m tests.benchmarks.contestants.NAME JOB.json`.

The peers share nothing with sparkinfer. Those that take plain Python share `kernel`: the same decoding and the same
ONNX session, so that only the engines differ.
"""
