"""One Prefect task per remote effect."""
