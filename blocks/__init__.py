"""Credentials for the platform, kept in a Prefect block."""

from prefect_prime.blocks.credentials import PrimeCredentials

__all__ = ["PrimeCredentials"]
