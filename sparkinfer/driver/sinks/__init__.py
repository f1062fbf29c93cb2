"""Where prediction tables go. Driver side."""
