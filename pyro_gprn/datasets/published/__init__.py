"""Data sets that others have published. Their files are downloaded once and checked each time they are loaded."""
