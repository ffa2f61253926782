"""What a person decorates or deploys."""
