"""The outputs Y: where they come from, what the bounds need of them, and how some of them are selected."""
