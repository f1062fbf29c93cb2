"""What report.json and report.html say, and how it looks. Driver side."""
