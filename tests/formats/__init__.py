"""Formats that others use: read into sources, written from any source."""
