"""What a resumable job remembers: whose it is, what is finished, and who works on it. Driver side."""
