"""How an input is cut into tasks. Driver side."""
