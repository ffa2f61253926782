"""Credentials for the platform, kept in a Prefect block."""
