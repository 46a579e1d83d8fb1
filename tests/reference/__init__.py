"""What the documents define, again in plain Python: slow, obvious, and written from the page."""
