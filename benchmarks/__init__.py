"""What it costs to track an eval, measured side by side: see README.md."""
