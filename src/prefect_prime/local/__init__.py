"""The embedded platform."""
