"""What runs inside every Python worker. Imports core, numpy, pyarrow, pillow; frameworks through the registry only."""
