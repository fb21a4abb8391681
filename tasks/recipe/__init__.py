"""What is asked: recipes, settings, the target, and the fingerprints of both."""
