"""What a run does while it runs: the tasks' messages, progress and metrics. Driver side."""
