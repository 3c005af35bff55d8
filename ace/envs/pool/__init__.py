"""Many environments stepped at once by worker processes."""
