"""Where images are: files, paths in tables, and rows that carry bytes. Driver side."""
