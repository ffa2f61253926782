"""LLM evaluations as tracked Prefect runs on the Prime Intellect platform."""
