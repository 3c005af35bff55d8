"""Many environments stepped in parallel by worker processes."""
